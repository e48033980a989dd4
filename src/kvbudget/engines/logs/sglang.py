"""Reads the start-up log of SGLang: `KV Cache is allocated`, `max_total_num_tokens=`, `mem usage=`.

Wordings of 0.4 to 0.5 (`mem_cache/memory_pool.py`, `managers/scheduler.py`, `model_executor/model_runner.py`). What it
prints as GB is divided by 2**30. A rank may allocate several caches (sliding layers, states, a draft model): all count.
"""

import re
from collections.abc import Iterable

from kvbudget.engines.logs.receipt import Facts, Line, Receipt, count, size

_GB = r"([0-9]+(?:\.[0-9]+)?) ?GB"
# "VirtualKV Cache is allocated" is an address range of a plug-in, no memory.
_ALLOCATED = re.compile(r"(?<![A-Za-z])(?:KV|MLA KV) Cache is allocated\.[^#]{0,80}#tokens: ([0-9]+)")
_PARTS = re.compile(r"(?:K|V|KV|Cache|conv_state|ssm_state) size: " + _GB)
_STATES = "Mamba Cache is allocated"
_WEIGHTS = re.compile(r"Load weight end\..*mem usage=" + _GB)
_FREE = re.compile(r"Load weight begin\. avail mem=" + _GB)
_DISTRIBUTED = re.compile(r"Init torch distributed ends?\..*mem usage=" + _GB)
_GRAPHS = re.compile(r"Capture cuda graph end\..*mem usage=" + _GB)
_LIMITS = (
    ("tokens", re.compile(r"\bmax_total_num_tokens=([0-9]+)")),
    ("max_num_seqs", re.compile(r"\bmax_running_requests=([0-9]+)")),
    ("max_model_len", re.compile(r"\bcontext_len(?:gth)?=([0-9]+)")),
    ("block_size", re.compile(r"\bpage_size=([0-9]+)")),
)
_ARGUMENT = re.compile(r"\b(\w{1,60})=('[^']*'|[\w.+-]+)")
_KEPT = frozenset(
    {"model_path", "dtype", "quantization", "kv_cache_dtype", "mem_fraction_static", "tp_size", "pp_size", "dp_size",
     "context_length", "page_size", "max_running_requests", "chunked_prefill_size", "max_total_tokens"}
)  # fmt: skip
_VERSION = re.compile(r"\bsglang(?:[ =:]+v?|/)([0-9]+\.[0-9]+[\w.+-]*)", re.IGNORECASE)
_REFUSALS = ("Not enough memory. Please try", "out of memory. Tried to allocate")
STARTS = ("server_args=",)
# Every line that a pattern here can match holds one of these.
HINTS = (
    "Cache is allocated", "Load weight ", "Init torch distributed", "Capture cuda graph end", "max_total_num_tokens=",
    "server_args=", "sglang=", "sglang ", "sglang:", "sglang/", "SGLang=", "SGLang ", "SGLang:", "SGLang/",
    "Not enough memory. Please try", "out of memory. Tried to allocate",
)  # fmt: skip
SIGNS = ("sglang", "KV Cache is allocated. #tokens:", "max_total_num_tokens=", "Load weight end.")


def read(lines: Iterable[Line]) -> Receipt | None:
    """What the last start in this log told; None when no line is SGLang's."""
    facts, sglang = Facts(), False
    for line in lines:
        text = line.text
        sglang = sglang or any(sign in text for sign in SIGNS)
        if "server_args=" in text:
            if facts.receipt("sglang").sized:
                facts = Facts()
            _read_line(facts, _arguments(facts, line))
        else:
            _read_line(facts, line)
    return _finished(facts) if sglang else None


def _arguments(facts: Facts, line: Line) -> Line:
    """Takes the flags that matter for the pool; gives the line with these alone: others may be secrets."""
    for name, value in _ARGUMENT.findall(line.text.partition("server_args=")[2]):
        if name in _KEPT and value != "None":
            facts.flags[name] = value.strip("'")[:200]
    kept = ", ".join(f"{name}={value}" for name, value in facts.flags.items())
    line = line._replace(text=f"server_args=ServerArgs({kept})")
    facts.note("model", facts.flags.get("model_path"), line)
    return line


def _read_line(facts: Facts, line: Line) -> None:
    text = line.text
    if match := _ALLOCATED.search(text):
        tokens = count(match[1])
        known = facts.values.get("allocated")
        facts.note("allocated", max(tokens or 0, known if isinstance(known, int) else 0), line)
    if match or _STATES in text:
        found = [size(number, "GB") or 0 for number in _PARTS.findall(text)]
        if found:
            facts.note_size("kv_bytes", sum(found), line, add=True)
    for field, pattern in (
        ("weights_bytes", _WEIGHTS), ("free_bytes", _FREE),
        ("non_torch_bytes", _DISTRIBUTED), ("cuda_graphs_bytes", _GRAPHS),
    ):  # fmt: skip
        if found_size := pattern.search(text):
            draft = field == "weights_bytes" and facts.ranks_of("kv_bytes") > 0  # loaded after the first pool
            facts.note_size(field, size(found_size[1], "GB"), line, add=draft)
    if "max_total_num_tokens=" in text or "server_args=" in text:
        for field, pattern in _LIMITS:
            if match := pattern.search(text):
                facts.note(field, count(match[1]), line)
    if match := _VERSION.search(text):
        facts.note("version", match[1][:40], line, once=True)
    at = next((found_at for mark in _REFUSALS if (found_at := text.find(mark)) >= 0), -1)
    if at >= 0:
        facts.note("refusal", text[at : at + 600], line, once=True)


def _finished(facts: Facts) -> Receipt:
    values = facts.values
    if "tokens" not in values and "allocated" in values:
        values["tokens"] = values["allocated"]
    asked = [count(facts.flags.get(flag, "")) or 1 for flag in ("tp_size", "pp_size")]
    ranks = max(facts.ranks_of("kv_bytes"), asked[0] * asked[1])
    if ranks > 1 or "tp_size" in facts.flags:
        values["ranks"] = ranks
    if "cuda_graphs_bytes" in values:
        values["graphs_counted"] = False  # captured after the pool, out of what --mem-fraction-static left free
    block, tokens = values.get("block_size"), values.get("tokens")
    if isinstance(block, int) and isinstance(tokens, int) and block > 0:
        values["num_blocks"] = tokens // block
    return facts.receipt("sglang")
