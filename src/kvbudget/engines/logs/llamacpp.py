"""Reads the start-up log of llama.cpp (llama-server, and Ollama's runner): cells of the cache, buffers by device.

Wordings: `llama_kv_cache: size =` (2025-06 on), `llama_kv_cache_unified: size =` (2025-05), `KV self size =` (before).
A model with sliding layers has two caches; with recurrent ones a third. Their sizes add up over all devices.
"""

import re
from collections.abc import Iterable

from kvbudget.engines.logs.receipt import Facts, Line, Receipt, count, size

_N = r"([0-9]+(?:\.[0-9]+)?)"
_CACHE = re.compile(r"llama_kv_cache\w*: size = +" + _N + r" (MiB) \( *([0-9]+) cells, +[0-9]+ layers, +([0-9]+)")
_STATE = re.compile(r"llama_memory_recurrent: size = +" + _N + r" (MiB)")
_OLD_CACHE = re.compile(r"KV self size {0,9}=? {0,9}" + _N + r" (MiB)")
_CELLS = re.compile(r"llama_kv_cache_init: kv_size = ([0-9]+)")
_BUFFER = re.compile(r"(\S{1,40}) {1,40}(model|compute|output) buffer size = +" + _N + r" (MiB)")
_FILE = re.compile(r"(?:file size|model size) += +" + _N + r" (GiB|MiB|GB|MB)")
_CONTEXT = re.compile(r"\bn_ctx {0,20}=? {0,9}([0-9]+)")
_SEQUENCE = re.compile(r"\bn_ctx_(?:per_)?seq {0,20}=? {0,9}([0-9]+)")
_SLOTS = re.compile(r"\b(?:n_seq_max|n_slots|n_parallel) {0,20}=? {0,9}([0-9]+)")
_BUILD = re.compile(r"\bbuild:? ([0-9]+) \(([0-9a-f]+)\)|\bb([0-9]{4,6})-[0-9a-f]{6,}")
_NAME = re.compile(r"general\.name {0,40}(?:str)? {0,40}= (.{1,200})")
_DEVICE = re.compile(r"using device (\S{1,40}) \(.{0,200}\) - ([0-9]+) MiB free")
_ON_HOST = ("CPU", "_Host", "_Mapped")
STARTS = ("starting llama server", "starting runner", "build: ", "system_info:")
_REFUSALS = (
    "failed to allocate buffer for kv cache",
    "failed to create context",
    "unable to load model",
    "out of memory",
)
# Every line that a pattern here can match holds one of these.
HINTS = (
    "llama_kv_cache", "llama_memory_recurrent: size", "KV self size", "buffer size = ", "file size", "model size",
    "n_ctx ", "n_ctx=", "n_ctx_per_seq", "n_ctx_seq", "n_seq_max", "n_slots", "n_parallel", "build: ", "build ",
    "general.name", "using device", "failed to create context", "failed to allocate buffer", "unable to load model",
    "out of memory", "starting llama server", "starting runner", "system_info:",
)  # fmt: skip
SIGNS = ("llama_", "llm_load", "load_tensors:", "print_info:")


def read(lines: Iterable[Line]) -> Receipt | None:
    """What the last start in this log told; None when no line is llama.cpp's."""
    facts, llama = Facts(), False
    for line in lines:
        text = line.text
        llama = llama or any(sign in text for sign in SIGNS)
        if any(mark in text for mark in STARTS) and facts.receipt("llamacpp").sized:
            facts = Facts()
        _read_line(facts, line)
    return _finished(facts) if llama else None


def _read_line(facts: Facts, line: Line) -> None:
    text = line.text
    if not any(hint in text for hint in HINTS):
        return
    line = line._replace(rank="")  # one process for all devices
    if match := _CACHE.search(text):
        facts.note_size("kv_bytes", size(match[1], match[2]), line, add=True)
        # Sliding layers have a cache of their own with fewer cells: the largest is what holds a whole context.
        known = facts.values.get("tokens")
        facts.note("tokens", max(count(match[3]) or 0, known if isinstance(known, int) else 0), line)
    elif (match := _STATE.search(text)) or (match := _OLD_CACHE.search(text)):
        facts.note_size("kv_bytes", size(match[1], match[2]), line, add=True)
    if match := _BUFFER.search(text):
        on_card = not any(word in match[1] for word in _ON_HOST)
        field = "weights_bytes" if match[2] == "model" else "activation_bytes"
        if on_card:
            facts.note_size(field, size(match[3], match[4]), line, add=True)
    if match := _FILE.search(text):
        facts.note_size("file_bytes", size(match[1], match[2]), line)
    for field, pattern in (
        ("cells", _CELLS),
        ("context", _CONTEXT),
        ("per_sequence", _SEQUENCE),
        ("max_num_seqs", _SLOTS),
    ):
        if match := pattern.search(text):
            facts.note(field, count(match[1]), line, once=field == "context")
    if match := _BUILD.search(text):
        facts.note("version", f"b{match[1] or match[3]}", line)
    if match := _NAME.search(text):
        facts.note("model", match[1].strip()[:200], line)
    if match := _DEVICE.search(text):
        facts.note_size("free_bytes", size(match[2], "MiB"), line._replace(rank=match[1]))
    at = next((found_at for mark in _REFUSALS if (found_at := text.find(mark)) >= 0), -1)
    if at >= 0:
        facts.note("refusal", text[:600], line, once=True)


def _finished(facts: Facts) -> Receipt:
    values = facts.values
    for field, source in (("tokens", "cells"), ("tokens", "context"), ("weights_bytes", "file_bytes"),
                          ("max_model_len", "per_sequence"), ("max_model_len", "context")):  # fmt: skip
        if field not in values and source in values:
            values[field] = values[source]
    if facts.ranks_of("free_bytes"):
        values["ranks"] = facts.ranks_of("free_bytes")
    if "tokens" in values:
        values["num_blocks"], values["block_size"] = values["tokens"], 1  # a cell holds one token
    return facts.receipt("llamacpp")
