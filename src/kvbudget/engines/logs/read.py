"""Decides which engine a text comes from, and gives what it told: entry of this package."""

from kvbudget.engines.logs import llamacpp, sglang, tgi, trtllm, vllm
from kvbudget.engines.logs.lines import lines_of
from kvbudget.engines.logs.metrics import receipt_of_metrics
from kvbudget.engines.logs.receipt import Receipt
from kvbudget.errors import UnsupportedError

_READERS = {"vllm": vllm, "sglang": sglang, "tgi": tgi, "llamacpp": llamacpp, "trtllm": trtllm}
_FIELDS_THAT_COUNT = ("tokens", "num_blocks", "kv_bytes", "concurrency", "weights_bytes", "refusal")


def receipt_of_log(text: str, engine: str = "") -> Receipt:
    """The last start that a log tells of, whichever engine it is, or of `engine` (a name as in --engine).

    Raises UnsupportedError when it tells nothing of a pool: cut before the pool was sized, or no engine's log;
    BadValueError when it is far too long.
    """
    if engine and engine not in _READERS:
        raise UnsupportedError(
            f"--engine {engine[:40]!r}: its start-up log is not known", fix=f"known are {', '.join(_READERS)}"
        )
    readers = [_READERS[engine]] if engine else list(_READERS.values())
    lines = lines_of(
        text,
        [hint for reader in readers for hint in reader.HINTS],
        [sign for reader in readers for sign in reader.SIGNS],
        [start for reader in readers for start in reader.STARTS],
    )
    found: list[Receipt] = [
        receipt for reader in readers if (receipt := reader.read(lines)) is not None and receipt.sized
    ]
    if not found:
        raise UnsupportedError(
            "this log tells nothing of a KV cache pool",
            fix=f"give the log from the start of the engine up to where it is ready; known are {', '.join(_READERS)}",
        )
    # SGLang's and TensorRT-LLM's logs quote vLLM's names now and then: who told more is who wrote it.
    return max(found, key=_told)


def receipt_of_text(text: str, engine: str = "") -> Receipt:
    """A log's or a /metrics text's receipt, whichever it is. Raises InputError."""
    return receipt_of_metrics(text) if looks_like_metrics(text) else receipt_of_log(text, engine)


def looks_like_metrics(text: str) -> bool:
    """Whether it is a Prometheus exposition: it begins with comments of that format, or a metric line is in it."""
    start = text.lstrip()[:4096]
    return start.startswith(("# HELP ", "# TYPE ")) or any(
        line.startswith(("vllm:", "sglang:", "tgi_", "trtllm_")) for line in start.split("\n")
    )


def _told(receipt: Receipt) -> int:
    return sum(getattr(receipt, field) is not None for field in _FIELDS_THAT_COUNT)
