"""Reads the start-up log of TensorRT-LLM: `[MemUsageChange] Allocated X GiB for max tokens in paged KV cache (N)`.

Wordings of 0.8 to 1.2 (`batch_manager/kvCacheManager.cpp`, `_torch/pyexecutor/_util.py`). The PyTorch flow makes a
small pool first to measure with, and the real one afterwards: the last counts.
"""

import re
from collections.abc import Iterable

from kvbudget.engines.logs.receipt import Facts, Line, Receipt, count, size

_N = r"([0-9]+(?:\.[0-9]+)?)"
_ALLOCATED = re.compile(r"Allocated " + _N + r" (GiB|MiB) for max tokens in paged KV cache \(([0-9]+)\)")
_OLD_BYTES = re.compile(r"Allocate ([0-9]+) bytes for k/v cache")
_COUNTS = (
    ("tokens", re.compile(r"Using ([0-9]+) tokens in paged KV cache")),
    ("num_blocks", re.compile(r"Number of blocks in KV cache primary pool: ([0-9]+)")),
    ("num_blocks", re.compile(r"\bprimary blocks=([0-9]+)")),
    ("block_size", re.compile(r"Number of tokens per block: ([0-9]+)")),
    ("block_size", re.compile(r"\btokens per block=([0-9]+)")),
    ("max_model_len", re.compile(r"\bmax_seq_len=([0-9]+)")),
    ("max_model_len", re.compile(r"TRTGptModel maxSequenceLen: ([0-9]+)")),
    ("max_num_seqs", re.compile(r"\bmax_num_requests=([0-9]+)")),
    ("max_num_seqs", re.compile(r"TRTGptModel maxBatchSize: ([0-9]+)")),
)
_SIZES = (
    ("total_bytes", re.compile(r"(?:device total memory|paged kv cache: total:) " + _N + r" (GiB)", re.IGNORECASE)),
    ("free_bytes", re.compile(r"paged kv cache: total: [0-9.]+ GiB, available: " + _N + r" (GiB)", re.IGNORECASE)),
    ("weights_bytes", re.compile(r"Memory used after loading model weights[^:]*: " + _N + r" (GiB)")),
    ("weights_bytes", re.compile(r"Memory used for model weights[^:]*: " + _N + r" (GiB)")),
    ("weights_bytes", re.compile(r"Loaded engine size: ([0-9]+) (MiB)")),
)
_VERSION = re.compile(r"TensorRT[-_ ]LLM\]? +(?:TensorRT-LLM )?version:? ?v?([0-9]+\.[0-9]+[\w.+-]*)", re.IGNORECASE)
_REFUSALS = (
    "Impossible to fit in any sequence in kvCache",
    "Impossible to fit any sequence in kvCache",
    "Out of memory",
    "out of memory",
)
STARTS: tuple[str, ...] = ()  # a second start tells everything again
# Every line that a pattern here can match holds one of these.
HINTS = (
    "in paged KV cache", "for k/v cache", "KV cache primary pool", "primary blocks=", "tokens per block",
    "max_seq_len=", "TRTGptModel max", "max_num_requests=", "evice total memory", "aged kv cache: total",
    "aged KV cache: total", "Memory used after loading model weights", "Memory used for model weights",
    "Loaded engine size", "LLM version", "LLM] version", "Impossible to fit", "Out of memory", "out of memory",
)  # fmt: skip
SIGNS = ("TensorRT-LLM", "TRT-LLM", "tensorrt_llm")


def read(lines: Iterable[Line]) -> Receipt | None:
    """What the last start in this log told; None when no line is TensorRT-LLM's."""
    facts, trtllm = Facts(), False
    for line in lines:
        text = line.text
        trtllm = trtllm or any(sign in text for sign in SIGNS)
        if not any(hint in text for hint in HINTS):
            continue
        if match := _ALLOCATED.search(text):
            facts.note_size("kv_bytes", size(match[1], match[2]), line)
            facts.note("tokens", count(match[3]), line)
        elif match := _OLD_BYTES.search(text):
            facts.note_size("kv_bytes", count(match[1]), line)
        for field, pattern in _COUNTS:
            if match := pattern.search(text):
                facts.note(field, count(match[1]), line)
        for field, pattern in _SIZES:
            if match := pattern.search(text):
                facts.note_size(field, size(match[1], match[2]), line)
        if match := _VERSION.search(text):
            facts.note("version", match[1], line)
        at = next((found_at for mark in _REFUSALS if (found_at := text.find(mark)) >= 0), -1)
        if at >= 0:
            facts.note("refusal", text[at : at + 600], line, once=True)
    return _finished(facts) if trtllm else None


def _finished(facts: Facts) -> Receipt:
    values = facts.values
    tokens, block = values.get("tokens"), values.get("block_size")
    if isinstance(tokens, int) and isinstance(block, int) and block > 0:
        values["num_blocks"] = -(-tokens // block)  # older versions print the tokens before rounding them up to blocks
    if facts.ranks_of("kv_bytes") > 1:
        values["ranks"] = facts.ranks_of("kv_bytes")
    return facts.receipt("trtllm")
