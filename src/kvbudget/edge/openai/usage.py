"""Which token counts the engine reported, read from the last bytes of its answer, plain or SSE."""

from typing import Final, NamedTuple

from kvbudget.edge.openai.tails import Member, parsed
from kvbudget.units import Tokens

USAGE: Final = Member("usage")
"""As OpenAI's chat, completions and embeddings have it."""
_USAGE_BYTES: Final = 512
"""Of an answer's end, in which a plain answer's own usage is looked for first."""
_BACKSLASH: Final = 92
_BRACE: Final = 125
_LARGEST: Final = 2**53
_USUAL: Final = frozenset(("prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"))
_new: Final = tuple.__new__  # without the call into Python that a NamedTuple makes first


class Usage(NamedTuple):
    """Tokens as the engine counted them; None: not told. `cached_tokens` is part of `prompt_tokens`."""

    prompt_tokens: Tokens | None
    completion_tokens: Tokens | None
    cached_tokens: Tokens | None


def usage_in(tail: bytes, member: Member = USAGE) -> Usage | None:
    """The last usage in the last bytes of an answer; None when there is none. Never raises.

    `tail` may begin anywhere inside the answer. `member`: where the API has it. Anthropic's stream spreads its
    counts over two events (`message_start`, `message_delta`); they are joined when both are in the tail.
    """
    at = tail.rfind(b'"usage"', -_USAGE_BYTES)
    if at > 0 and tail[-1] == _BRACE and tail[at - 1] != _BACKSLASH:
        told = _last_usage(tail[at:])  # without reading the rest, which may be long
        if told is not None:
            return told
    return _of_documents(tail, member)


def _last_usage(end: bytes) -> Usage | None:
    """Of an answer that ends with its usage, and perhaps with other members behind it, and that has the usual members
    alone. With one brace left to close, the key stood at the top of the document. None says nothing."""
    document = parsed(b"{" + end)
    usage = document.get("usage") if isinstance(document, dict) else None
    if not isinstance(usage, dict) or not _USUAL.issuperset(usage) or usage.get("prompt_tokens_details") is not None:
        return None
    prompt_tokens, output_tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if is_count(prompt_tokens) and is_count(output_tokens):
        return _new(Usage, (prompt_tokens, output_tokens, None))
    return None


def _of_documents(tail: bytes, member: Member) -> Usage | None:
    late: dict[str, int] = {}
    for usage in member.objects(tail):
        counts = _counts(usage)
        if counts:
            late = counts | late
            if "prompt" in late and "completion" in late:
                break
    return _usage(late)


def _counts(usage: dict[str, object]) -> dict[str, int]:
    """What one usage tells: any of `prompt`, `completion`, `cached`."""
    counts: dict[str, int] = {}
    _take(counts, "prompt", usage.get("prompt_tokens"))
    _take(counts, "completion", usage.get("completion_tokens", usage.get("output_tokens")))
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    if isinstance(details, dict):
        _take(counts, "cached", details.get("cached_tokens"))
    if "prompt" not in counts:
        _take(counts, "prompt", usage.get("input_tokens"))
        if "prompt" in counts:
            # Anthropic counts what the cache gave apart (vLLM 0.32 entrypoints/anthropic/serving.py); OpenAI does not.
            for field in ("cache_read_input_tokens", "cache_creation_input_tokens"):
                apart = usage.get(field)
                if is_count(apart):
                    assert isinstance(apart, int)  # noqa: S101 - for the type checker only
                    counts["prompt"] += apart
            _take(counts, "cached", usage.get("cache_read_input_tokens"))
    return counts


def _take(counts: dict[str, int], name: str, value: object) -> None:
    if is_count(value):
        assert isinstance(value, int)  # noqa: S101 - for the type checker only
        counts[name] = value


def is_count(value: object) -> bool:
    """Whether a member of an answer can be a number of tokens."""
    return type(value) is int and 0 <= value <= _LARGEST


def _usage(counts: dict[str, int]) -> Usage | None:
    prompt, completion, cached = counts.get("prompt"), counts.get("completion"), counts.get("cached")
    if prompt is None:
        # The last event of Anthropic's own streams tells the output alone; the prompt's was the first.
        return None if completion is None else Usage(None, Tokens(completion), None)
    return Usage(Tokens(prompt), Tokens(completion or 0), None if cached is None else Tokens(cached))
