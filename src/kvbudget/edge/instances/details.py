"""What engines tell of themselves elsewhere than in their metrics: TGI on /info, llama.cpp on /props, SGLang likewise.

Asked for once after an engine came up. Read at: TGI 3.3 `router/src/server.rs` (Info), llama.cpp of 2026
`tools/server` (`/props`), SGLang of 2026 `entrypoints/http_server.py` (`/get_server_info`).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from kvbudget.edge.http.upstream import Response, UpstreamError
from kvbudget.engines.readings import EnginePool, pool_of_tokens
from kvbudget.units import Tokens

Get = Callable[[bytes], Awaitable[Response]]
_LARGEST = 10**12


class _Page(NamedTuple):
    engine: str
    path: bytes


_PAGES = (_Page("sglang", b"/get_server_info"), _Page("tgi", b"/info"), _Page("llamacpp", b"/props"))


@dataclass(frozen=True, slots=True)
class Details:
    """What is known from there; None: not told. `page_tokens`: tokens of a block of the pool."""

    engine: str = ""
    models: tuple[str, ...] = ()
    max_context: Tokens | None = None
    max_num_seqs: int | None = None
    page_tokens: int | None = None
    pool_tokens: int | None = None

    def pool_of(self, told: EnginePool | None) -> EnginePool | None:
        """The pool by the metrics, in the engine's own blocks; or by what was told here."""
        tokens = self.pool_tokens if told is None or told.tokens is None else told.tokens
        if told is not None and self.page_tokens is None:
            return told
        return pool_of_tokens(tokens, self.page_tokens or 1) or told


async def details_of(get: Get, engine: str) -> Details:
    """Ask the page of this engine; of an unknown one, all pages. What goes wrong tells nothing."""
    for page in _PAGES:
        if engine in ("", page.engine):
            document = await _document(get, page.path)
            details = _READERS[page.engine](document) if document else None
            if details is not None:
                return details
    return Details(engine=engine)


def details_page(engine: str) -> str | None:
    """Where this engine tells them; None of one that has no such page."""
    return next((page.path.decode() for page in _PAGES if page.engine == engine), None)


def details_in(engine: str, document: dict[str, object]) -> Details | None:
    """What such a page tells; None if it is another's."""
    return _READERS[engine](document) if engine in _READERS else None


async def _document(get: Get, path: bytes) -> dict[str, object]:
    import orjson  # here: `kvbudget diagnose` reads `details_in` alone, and works without the extra `gate`

    try:
        answer = await get(path)
        document = orjson.loads(answer.body) if answer.status == 200 else None
    except (UpstreamError, orjson.JSONDecodeError):
        return {}
    return document if isinstance(document, dict) else {}


def _sglang(info: dict[str, object]) -> Details | None:
    if "page_size" not in info and "max_total_num_tokens" not in info:
        return None
    return Details(
        engine="sglang",
        max_context=_tokens(info.get("context_length")),
        max_num_seqs=_count(info.get("max_running_requests")),
        page_tokens=_count(info.get("page_size")),
        pool_tokens=_count(info.get("max_total_num_tokens")),
    )


def _tgi(info: dict[str, object]) -> Details | None:
    if "max_total_tokens" not in info:
        return None
    model = info.get("model_id")
    return Details(
        engine="tgi",
        models=(model,) if isinstance(model, str) else (),
        max_context=_tokens(info.get("max_total_tokens")),
        # It sheds beyond that many with 429: requests, not tokens (TGI#439).
        max_num_seqs=_count(info.get("max_concurrent_requests")),
        pool_tokens=_count(info.get("max_batch_total_tokens")),
    )


def _llamacpp(props: dict[str, object]) -> Details | None:
    """`n_ctx` is what one slot can take. Whether the slots have that each or share it (--kv-unified) is not told, so
    they are taken to share: the other guess overflows, and an overflow there ends all generations (llama.cpp#23652)."""
    settings = props.get("default_generation_settings")
    n_ctx = _count(settings.get("n_ctx")) if isinstance(settings, dict) else None
    if n_ctx is None:
        return None
    return Details(
        engine="llamacpp",
        max_context=Tokens(n_ctx),
        max_num_seqs=_count(props.get("total_slots")),
        page_tokens=1,
        pool_tokens=n_ctx,
    )


_READERS: dict[str, Callable[[dict[str, object]], Details | None]] = {
    "sglang": _sglang, "tgi": _tgi, "llamacpp": _llamacpp,
}  # fmt: skip


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 < value <= _LARGEST else None


def _tokens(value: object) -> Tokens | None:
    count = _count(value)
    return None if count is None else Tokens(count)
