"""Reads a /metrics text for what the engine says of its pool: a receipt of an engine that runs, without its log.

Names: vLLM 0.32 `v1/metrics/loggers.py`, SGLang `metrics/collector.py`, TGI `router/src/server.rs`, TensorRT-LLM
`metrics/collector.py`. llama.cpp tells nothing of its pool there since #13660 (2025-05).
"""

from kvbudget.engines.logs.receipt import Facts, Line, Receipt, count
from kvbudget.engines.metrics import sglang, tgi, trtllm
from kvbudget.engines.readings import plain_name
from kvbudget.engines.vllm_metrics import CACHE_CONFIG_INFO, pool_from_cache_config
from kvbudget.errors import BadValueError, UnsupportedError

_LONGEST = 65_536
_KEPT = ("cache_dtype", "gpu_memory_utilization", "kv_cache_memory_bytes", "enable_prefix_caching", "mamba_block_size")
_GAUGES = {
    "sglang": (("tokens", sglang.MAX_TOKENS), ("max_num_seqs", sglang.MAX_RUNNING), ("block_size", sglang.PAGE_SIZE)),
    "tgi": (("tokens", tgi.MAX_BATCH_TOKENS),),
    "trtllm": (("num_blocks", trtllm.MAX_BLOCKS), ("block_size", trtllm.BLOCK_TOKENS)),
}


def receipt_of_metrics(text: str) -> Receipt:
    """What a scrape tells. Raises UnsupportedError when it has no metric of a pool, BadValueError for damaged ones."""
    facts: dict[str, Facts] = {}
    for number, raw in enumerate(text.split("\n"), 1):
        line = Line(number, raw[:_LONGEST], "")
        if plain_name(raw[:80]).startswith(plain_name(CACHE_CONFIG_INFO)):
            _vllm(facts.setdefault("vllm", Facts()), line)
            continue
        name = plain_name(raw.partition("{")[0].partition(" ")[0])
        for engine, gauges in _GAUGES.items():
            for field, gauge in gauges:
                if name == plain_name(gauge):
                    _gauge(facts.setdefault(engine, Facts()), field, line)
    for engine, told in facts.items():
        values = told.values
        blocks, block = values.get("num_blocks"), values.get("block_size")
        if engine == "trtllm" and isinstance(blocks, int) and isinstance(block, int):
            values["tokens"] = blocks * block
        receipt = told.receipt(engine)
        if receipt.sized:
            return receipt
    raise UnsupportedError(
        "no metric here tells the size of a pool",
        fix="give the engine's /metrics once it is ready (SGLang: --enable-metrics), or its start-up log",
    )


def _vllm(facts: Facts, line: Line) -> None:
    labels = labels_of(line.text)
    if not labels:
        return
    pool = pool_from_cache_config(labels)
    known = facts.values.get("num_blocks")
    if isinstance(known, int) and known <= pool.num_blocks:
        return  # data-parallel engines have a pool each: the smallest is told
    for field, value in (
        ("num_blocks", int(pool.num_blocks)), ("block_size", int(pool.block_size)), ("tokens", pool.tokens),
        ("concurrency", pool.max_concurrency), ("max_model_len", pool.max_model_len),
    ):  # fmt: skip
        facts.note(field, value, line)
    if (count(labels.get("num_gpu_blocks_override", "")) or 0) > 0:
        facts.note("blocks_given", True, line)
    facts.flags = {name: labels[name][:200] for name in _KEPT if labels.get(name, "None") != "None"}


def _gauge(facts: Facts, field: str, line: Line) -> None:
    try:
        value = float(line.text.rpartition("}")[2].split()[-1 if "{" in line.text else 1])
    except (ValueError, IndexError):
        raise BadValueError(
            f"/metrics, line {line.number}: {line.text[:60]!r} has no value", fix="check the engine"
        ) from None
    known = facts.values.get(field)
    if 0 < value < 1e15:
        whole = int(value)
        facts.note(field, min(whole, known) if isinstance(known, int) else whole, line)  # one series for each rank


def labels_of(line: str) -> dict[str, str]:
    """The labels of one sample line; empty when it is damaged."""
    text, labels, at = line.partition("{")[2], {}, 0
    while (equals := text.find('="', at)) >= 0:
        name, value, at = text[at:equals].strip(" ,"), [], equals + 2
        while at < len(text) and text[at] != '"':
            if text[at] == "\\" and at + 1 < len(text):
                at += 1
                value.append("\n" if text[at] == "n" else text[at])
            else:
                value.append(text[at])
            at += 1
        if at >= len(text):
            return {}
        labels[name] = "".join(value)
        at += 1
    return labels
