"""Reads the start-up log of TGI: its pool is one number of tokens, `Setting max batch total tokens to N`.

Wordings of 0.9 to 3.3 (`router/src/server.rs`, `server/text_generation_server/models/flash_causal_lm.py`).
"""

import re
from collections.abc import Iterable

from kvbudget.engines.logs.receipt import Facts, Line, Receipt, count

_TOKENS = re.compile(r"(?:Setting|Inferred) max batch total tokens(?: to|:) ([0-9]+)")
_BLOCKS = re.compile(r"KV-cache blocks: ([0-9]+), size: ([0-9]+)")
_ARGUMENT = re.compile(r"\b(\w{1,60}): (?:Some\()?(\"[^\"]*\"|[\w.+-]+)")
_KEPT = frozenset(
    {"model_id", "num_shard", "quantize", "dtype", "kv_cache_dtype", "max_total_tokens", "max_input_tokens",
     "max_batch_prefill_tokens", "max_batch_total_tokens", "max_batch_size", "cuda_memory_fraction"}
)  # fmt: skip
_VERSION = re.compile(r"text[_-]generation[_-]\w+[ :]+v?([0-9]+\.[0-9]+\.[0-9]+)")
_PARTS = ("launcher", "router", "server", "inference", "benchmark")
_REFUSALS = (
    "Not enough memory to handle",
    "`max_total_tokens` must be <=",
    "`max_batch_total_tokens` must be",
    "out of memory. Tried to allocate",
)
STARTS = ("Args {",)
# Every line that a pattern here can match holds one of these.
HINTS = (
    "max batch total tokens", "KV-cache blocks: ", "Args {", "text-generation-", "text-generation_", "text_generation-",
    "Not enough memory to handle", "`max_total_tokens` must be <=", "`max_batch_total_tokens` must be",
    "out of memory. Tried to allocate", *(f"text_generation_{part}{end}" for part in _PARTS for end in (" ", ": ")),
)  # fmt: skip
SIGNS = ("text_generation_", "max batch total tokens")


def read(lines: Iterable[Line]) -> Receipt | None:
    """What the last start in this log told; None when no line is TGI's."""
    facts, tgi = Facts(), False
    for line in lines:
        text = line.text
        tgi = tgi or any(sign in text for sign in SIGNS)
        if "Args {" in text:
            if facts.receipt("tgi").sized:
                facts = Facts()
            _arguments(facts, line)
        if match := _TOKENS.search(text):
            facts.note("tokens", count(match[1]), line)
        if match := _BLOCKS.search(text):
            facts.note("num_blocks", count(match[1]), line)
            facts.note("block_size", count(match[2]), line)
        if match := _VERSION.search(text):
            facts.note("version", match[1], line, once=True)
        at = next((found_at for mark in _REFUSALS if (found_at := text.find(mark)) >= 0), -1)
        if at >= 0:
            facts.note("refusal", text[at : at + 600], line, once=True)
    return facts.receipt("tgi") if tgi else None


def _arguments(facts: Facts, line: Line) -> None:
    for name, value in _ARGUMENT.findall(line.text.partition("Args {")[2]):
        if name in _KEPT and value != "None":
            facts.flags[name] = value.strip('"')[:200]
    kept = ", ".join(f"{name}: {value}" for name, value in facts.flags.items())
    line = line._replace(text=f"Args {{ {kept} }}")  # other arguments may be secrets
    facts.note("model", facts.flags.get("model_id"), line)
    facts.note("max_model_len", count(facts.flags.get("max_total_tokens", "")), line)
    facts.note("ranks", count(facts.flags.get("num_shard", "")), line)
    facts.note("blocks_given", True if count(facts.flags.get("max_batch_total_tokens", "")) else None, line)
