"""Decides what a log tells of an engine that serves: its periodic lines, and the pool from its start: entry here."""

import re
from collections.abc import Mapping
from dataclasses import replace

from kvbudget.engines.logs.lines import plain_lines
from kvbudget.engines.logs.periodic import llamacpp, sglang, vllm
from kvbudget.engines.logs.periodic.tally import PeriodicReader, Summed
from kvbudget.engines.logs.read import receipt_of_log
from kvbudget.engines.logs.receipt import Receipt, count, version_pair
from kvbudget.engines.readings import EnginePool, pool_of_tokens
from kvbudget.engines.window import Counts, EngineWindow, Limits, Observation
from kvbudget.errors import InputError, UnsupportedError
from kvbudget.units import Blocks, Tokens, is_digits

LOG_WINDOW_S = 600.0
_HINTS = (*vllm.HINTS, *sglang.HINTS, *llamacpp.HINTS)
# uvicorn's access log, of vLLM and SGLang alike; inside of a JSON envelope its quotes are escaped.
_ACCESS = "HTTP/1.1"
_STATUS = re.compile(r'"POST /\S{0,200} HTTP/1\.1\\?"? ([0-9]{3})')
_NULL_BLOCKS = {"vllm": 1}
_PREEMPTIONS_LOGGED = (0, 32)  # read at 0.32: a line without them means none
_REFUSED, _LEFT = ("http_429", "http_503"), "http_499"
_MISSING = {
    "vllm": (
        "times, lengths and max_tokens are not in a log: give /metrics as well",
        "prefix hits are in the log as a rate alone (of the last thousand requests)",
    ),
    "sglang": ("times, lengths and max_tokens are not in a log: give /metrics as well",),
    "llamacpp": (
        "the use of the cache is not in the log of llama.cpp: lines without room tell that it was full",
        "how many wait is not in the log of llama.cpp: its /metrics tell it",
    ),
}


def observation_of_log(text: str, window_s: float = LOG_WINDOW_S, *, source: str = "") -> Observation:
    """What the last `window_s` seconds of a log tell, one window for each engine in it.

    Raises UnsupportedError where it has none of the lines that an engine writes while it serves.
    """
    readers: tuple[PeriodicReader, ...] = (vllm.Reader(), sglang.Reader(), llamacpp.Reader())
    for line in plain_lines(text, _HINTS, _ACCESS):
        status = _STATUS.search(line.text) if _ACCESS in line.text else None
        for reader in readers:
            if status is None:
                reader.read(line)
            else:
                reader.answered(status[1])
    told = [(sum(tally.lines for tally in reader.tallies.values()), index) for index, reader in enumerate(readers)]
    most, index = max(told, key=lambda pair: pair[0])
    reader = readers[index]
    receipt = _receipt(text, reader.engine if most else "")
    if not most:
        if receipt is None:
            raise UnsupportedError(
                (f"{source}: " if source else "") + "no line that an engine writes when it starts or while it serves",
                fix="give the log of vLLM, SGLang or llama.cpp from while it served; or its /metrics",
            )
        return Observation(engines=(_of_start(receipt),), sources=(source,) if source else ())
    limits = Limits() if receipt is None else _limits(receipt)
    if isinstance(reader, llamacpp.Reader) and reader.context and limits.max_model_len is None:
        limits = replace(limits, max_model_len=Tokens(reader.context))
    tallies = {name: tally for name, tally in reader.tallies.items() if tally.lines}
    windows = []
    for name, tally in tallies.items():
        summed = tally.summed(window_s, reader.usual_s)
        window = _window(reader.engine, receipt, limits, summed, reader.rates)
        label = "engine" if reader.engine == "vllm" else "dp_rank"
        where = f"{label}={int(name) if is_digits(name) else name}" if len(tallies) > 1 else ""
        windows.append(replace(window, where=where))
    return Observation(engines=tuple(windows), sources=(source,) if source else ())


def _of_start(receipt: Receipt) -> EngineWindow:
    return EngineWindow(
        engine=receipt.engine,
        version=receipt.version,
        model=receipt.model,
        limits=_limits(receipt),
        missing=("this log ends before the engine serves: give one from while it served, or its /metrics",),
    )


def _window(
    engine: str, receipt: Receipt | None, limits: Limits, summed: Summed, rates: Mapping[str, float]
) -> EngineWindow:
    sums = summed.sums
    notes: list[str] = []
    statuses = {name: amount for name, amount in sums.items() if name.startswith("http_")}
    errors = [amount for name, amount in statuses.items() if name.startswith("http_5") and name not in _REFUSED]
    preemptions = sums.get("preemptions")
    version = None if receipt is None else receipt.version
    if preemptions is None and (engine == "sglang" or _counts_preemptions(version)):
        preemptions = 0.0
    if not summed.stamped:
        notes.append("the lines have no time stamps: taken as the usual time apart")
    missing = list(_MISSING[engine])
    if preemptions is None and engine == "vllm":
        missing.append("preemptions are in the log of vLLM since 2026: give /metrics as well")
    if limits.pool is None:
        missing.append("the size of the pool is in the lines of its start, which are not in this log")
    extra: dict[str, float] = {
        **rates,
        **{name: sums[name] for name in ("no_room", "context_exceeded") if name in sums},
    }
    finished = sums.get("finished", statuses.get("http_200"))
    return EngineWindow(
        engine=engine,
        version=version,
        model=None if receipt is None else receipt.model,
        window_s=summed.window_s,
        looks=summed.looks,
        counts=Counts(
            prompt_tokens=sums.get("prompt_tokens"),
            generation_tokens=sums.get("generation_tokens"),
            prefix_queries=sums.get("prefix_queries"),
            prefix_hits=sums.get("prefix_hits"),
            preemptions=preemptions,
            finished={} if finished is None else {"any": finished},
            rejected={name: statuses[name] for name in _REFUSED if name in statuses},
            failed=sum(errors) if statuses else None,
            aborted=statuses.get(_LEFT),
        ),
        limits=limits,
        missing=tuple(missing),
        notes=tuple(notes),
        extra=extra,
    )


def _counts_preemptions(version: str | None) -> bool:
    pair = None if version is None else version_pair(version)
    return pair is not None and pair >= _PREEMPTIONS_LOGGED


def _receipt(text: str, engine: str) -> Receipt | None:
    try:
        return receipt_of_log(text, engine)
    except InputError:
        return None  # the start is not in it, or too many of them


def _limits(receipt: Receipt) -> Limits:
    flags = dict(receipt.flags)
    caching = flags.get("enable_prefix_caching", flags.get("disable_radix_cache", ""))
    on = {"True": True, "False": False}.get(caching)
    if "disable_radix_cache" in flags and on is not None:
        on = not on
    block = receipt.block_size or count(flags.get("block_size", flags.get("page_size", ""))) or None
    length = receipt.max_model_len or count(flags.get("max_model_len", "")) or None
    step = flags.get("max_num_batched_tokens", flags.get("chunked_prefill_size", ""))
    return Limits(
        pool=_pool(receipt, block),
        max_num_seqs=receipt.max_num_seqs
        or count(flags.get("max_num_seqs", flags.get("max_running_requests", "")))
        or None,
        max_num_batched_tokens=count(step) or None,
        max_model_len=Tokens(length) if length else None,
        prefix_caching=on,
        smallest_block=Tokens(block) if block else None,
        largest_block=Tokens(block) if block else None,
    )


def _pool(receipt: Receipt, block: int | None) -> EnginePool | None:
    """A log tells blocks, or tokens, or both."""
    blocks, tokens = receipt.num_blocks, receipt.tokens
    if blocks and block:
        usable = Blocks(max(0, blocks - _NULL_BLOCKS.get(receipt.engine, 0)))
        length = None if receipt.max_model_len is None else Tokens(receipt.max_model_len)
        return EnginePool(
            *(Blocks(blocks), usable, Tokens(block), tokens, receipt.concurrency, length, None, None, None)
        )
    return pool_of_tokens(tokens or (blocks * 16 if blocks else None), block or (16 if blocks else 1))
