"""Reads the start-up log of vLLM, from V0 (`# GPU blocks`) to 0.32 (`GPU KV cache size`).

Wordings by version: 0.6 to 0.8 `worker/worker.py`; since 0.8 `v1/core/kv_cache_utils.py`, `v1/worker/gpu_worker.py`,
`v1/worker/gpu_model_runner.py`. The pool of all ranks is that of the tightest one.
"""

import re
from collections.abc import Iterable

from kvbudget.engines.logs.receipt import Facts, Line, Receipt, count, size, version_pair

# Runs are bounded: a line of nothing but digits must not cost its length squared.
_N = r"(-?[0-9][0-9,]{0,20}(?:\.[0-9]{1,20})?)"
_SIZE = _N + r" ?(GiB|GB|MiB)"

_SIZES: tuple[tuple[str, re.Pattern[str]], ...] = (
    # V1: "Model loading took 14.99 GiB memory and 3.5 seconds"; V0: "Loading model weights took 67.7229 GB"
    ("weights_bytes", re.compile(r"(?:Model loading took|odel weights t(?:ook|ake)|weights memory:)\s+" + _SIZE)),
    ("non_torch_bytes", re.compile(r"non_torch_memory(?: takes\s+|\s+|=)" + _SIZE)),
    ("non_torch_bytes", re.compile(_SIZE + r" for non-torch memory")),
    ("activation_bytes", re.compile(r"PyTorch activation peak memory(?: takes)?\s+" + _SIZE)),
    ("activation_bytes", re.compile(_SIZE + r" for peak activation")),
    ("weights_bytes", re.compile(_SIZE + r" for weights?\b")),
    ("cuda_graphs_bytes", re.compile(r"Graph capturing finished in .{1,40}, took\s+" + _SIZE)),
    ("cuda_graphs_bytes", re.compile(r"CUDA graph pool memory: " + _SIZE)),
    ("kv_bytes", re.compile(r"memory reserved for KV Cache is\s+" + _SIZE)),
    ("kv_bytes", re.compile(r"(?:Available KV cache memory:|available_kv_cache_memory)\s+" + _SIZE)),
    ("kv_bytes", re.compile(r"\bkv_cache_size=" + _SIZE)),
    ("total_bytes", re.compile(r"total_gpu_memory(?:=|\s+| \()" + _SIZE)),
    ("peak_torch", re.compile(r"\bpeak_torch_memory=" + _SIZE)),
    ("estimated_graphs", re.compile(r"Estimated CUDA graph memory: " + _SIZE + " total")),
    # The CPU backend names the unit once: "Explicitly set (1.0/19.96) GiB for KV cache on node 0."
    ("kv_bytes", re.compile(r"(?:Explicitly|Auto) set \(" + _N + r"/[0-9.]+\) (GiB) for KV cache")),
)  # fmt: skip
_COUNTS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("tokens", re.compile(r"\b\w+(?: \+ host)? KV cache size: ([0-9,]+) tokens")),
    ("num_blocks", re.compile(r"# (?!CPU blocks)\w+ blocks: ([0-9]+)")),
    ("block_size", re.compile(r"Setting attention block size to ([0-9,]+) tokens")),
    ("max_model_len", re.compile(r"Using max model len ([0-9]+)")),
    ("max_model_len", re.compile(r"\bmax_seq_len=([0-9]+)")),
    ("max_model_len", re.compile(r"Auto-fit max_model_len: reduced from [0-9]+ to ([0-9]+)")),
    ("max_model_len", re.compile(r"Maximum concurrency for ([0-9,]+) tokens per request")),
)
_CONCURRENCY = re.compile(r"tokens per request: ([0-9]+(?:\.[0-9]+)?)x")
_OVERRIDE = re.compile(r"Overriding num_gpu_blocks=[0-9]+ with num_gpu_blocks_override=([0-9]+)")
_VERSION = re.compile(r"(?:LLM engine \(v|API server version |server version |\bversion )([0-9]+\.[0-9]+[\w.+-]*)")
_BANNER_MODEL = re.compile(r"[█▀▄] +model +(\S.*)$")
_CONFIG_MODEL = re.compile(r"with config: ?model=(?:'([^']*)'|\"([^\"]*)\")")
_ARGUMENT = re.compile(r"'([a-z_]{1,60})': ('[^']*'|\[[^\[\]]*\]|[^,{}\[\]]+)")
_KEPT = frozenset(
    {"model", "model_tag", "dtype", "quantization", "kv_cache_dtype", "max_model_len", "max_num_seqs", "block_size",
     "max_num_batched_tokens", "gpu_memory_utilization", "kv_cache_memory_bytes", "num_gpu_blocks_override",
     "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "decode_context_parallel_size",
     "enforce_eager", "enable_prefix_caching", "async_scheduling", "disable_hybrid_kv_cache_manager", "cpu_offload_gb",
     "mamba_cache_dtype", "mamba_ssm_cache_dtype"}
)  # fmt: skip
_CONFIG_FLAG = re.compile(
    r"\b(dtype|quantization|kv_cache_dtype|tensor_parallel_size|pipeline_parallel_size|data_parallel_size|"
    r"decode_context_parallel_size|enforce_eager|enable_prefix_caching)=([\w.+-]+)"
)
_ON_START = re.compile(
    r"Free memory on device \(([0-9.]+)/([0-9.]+) GiB\) on startup.{0,60}?"
    r"utilization (?:is )?\(([0-9.]+), ([0-9.]+) GiB\)"
)
_LESS_THAN_DESIRED = re.compile(
    r"Free memory on device (?:\S+ )?\(([0-9.]+)/([0-9.]+) GiB\) on startup is less than desired"
)
_SHARE = re.compile(r"x gpu_memory_utilization \([0-9.]+\) = " + _SIZE)
# What stops the start, in the order of preference: the first that is found says more than a trace's last line.
_REFUSALS = (
    "To serve at least one request with the model",
    "No available memory for the cache blocks",
    "max seq len (",
    "is less than desired GPU memory utilization",
    "out of memory. Tried to allocate",
)
_NEEDED = re.compile(
    r"\(" + _SIZE + r" KV cache is needed, which is larger than the available KV cache memory \(" + _SIZE
)
_ESTIMATED = re.compile(r"estimated maximum model length is ([0-9]+)")
_TOO_LONG = re.compile(r"max seq len \(([0-9]+)\) is larger than the maximum number of tokens[^()]*\(([0-9]+)\)")
STARTS = ("non-default args:", "vLLM API server version", "Initializing an LLM engine")
# Every line that a pattern here can match holds one of these; most lines of a log hold none.
# The three signs are those of the banner, as they stand and as JSON writes them.
HINTS = (
    "Model loading took", "odel weights t", "weights memory:", "non_torch_memory", "for non-torch memory",
    "PyTorch activation peak memory", "for peak activation", " for weight", "Graph capturing finished",
    "CUDA graph pool memory", "reserved for KV Cache", "Available KV cache memory", "available_kv_cache_memory",
    "kv_cache_size=", "total_gpu_memory", "peak_torch_memory=", "Estimated CUDA graph memory", ") GiB for KV cache",
    "KV cache size: ", " blocks: ", "Setting attention block size", "Using max model len", "max_seq_len=",
    "Auto-fit max_model_len", "tokens per request", "num_gpu_blocks_override", "LLM engine", "API server version",
    " version ", "█", "▀", "▄", "\\u2588", "\\u2580", "\\u2584", "with config:", "args:", "on startup",
    "gpu_memory_utilization (",
    "To serve at least one request", "No available memory for the cache blocks", "max seq len (",
    "is less than desired GPU memory utilization", "out of memory. Tried to allocate", "KV cache is needed",
    "estimated maximum model length",
)  # fmt: skip
SIGNS = ("KV cache", "KV Cache", "vLLM", "LLM engine", "blocks:", "odel weights t", "gpu_model_runner", "_memory")


def read(lines: Iterable[Line]) -> Receipt | None:
    """What the last start in this log told; None when no line is vLLM's."""
    facts, vllm = Facts(), False
    for line in lines:
        text = line.text
        if any(mark in text for mark in STARTS) and facts.receipt("vllm").sized:
            version = facts.values.get("version")
            facts = Facts()  # the log goes on with another start; a banner that came just before belongs to it
            facts.note("version", version, line)
        if not vllm and any(sign in text for sign in SIGNS):
            vllm = "LLM" in text or "vllm" in text.lower() or _told_pool(text)
        _read_line(facts, line)
    return _finished(facts) if vllm else None


def _told_pool(text: str) -> bool:
    return any(
        pattern.search(text) for field, pattern in (*_SIZES, *_COUNTS) if field in ("kv_bytes", "tokens", "num_blocks")
    )


def _read_line(facts: Facts, line: Line) -> None:
    text = line.text
    if not any(hint in text for hint in HINTS):
        return
    if "non-default args:" in text:
        _arguments(facts, line)
    if "ersion" in text or "LLM engine (v" in text:
        _note(facts, "version", _VERSION, line)
    if " model " in text or "with config:" in text:
        _model_and_configuration(facts, line)
    for field, pattern in _SIZES:
        if match := pattern.search(text):
            facts.note_size(field, size(match[1], match[2]), line)
    for field, pattern in _COUNTS:
        if match := pattern.search(text):
            facts.note(field, count(match[1]), line)
    if match := _CONCURRENCY.search(text):
        facts.note("concurrency", float(match[1][:20]), line)
    if match := _OVERRIDE.search(text):
        facts.note("num_blocks", count(match[1]), line)
        facts.note("blocks_given", True, line)
    if match := _ON_START.search(text):
        facts.note_size("usable_bytes", size(match[4], "GiB"), line)
    if match := _ON_START.search(text) or _LESS_THAN_DESIRED.search(text):
        facts.note("free_bytes", size(match[1], "GiB"), line)
        facts.note_size("total_bytes", size(match[2], "GiB"), line)
    if match := _SHARE.search(text):
        facts.note_size("usable_bytes", size(match[1], match[2]), line)
    _refusal(facts, line)


def _model_and_configuration(facts: Facts, line: Line) -> None:
    _note(facts, "model", _BANNER_MODEL, line)
    _note(facts, "model", _CONFIG_MODEL, line)
    if "with config:" in line.text:
        for name, value in _CONFIG_FLAG.findall(line.text):
            facts.flags.setdefault(name, value.removeprefix("torch."))


def _note(facts: Facts, field: str, pattern: re.Pattern[str], line: Line) -> None:
    if match := pattern.search(line.text):
        facts.note(field, next((group for group in match.groups() if group), "")[:200].strip() or None, line)


def _arguments(facts: Facts, line: Line) -> None:
    """`non-default args: {'model': '...', 'max_model_len': 1024}`: also when the line was cut.

    Only flags that matter for the pool are kept: others may be secrets.
    """
    for name, value in _ARGUMENT.findall(line.text.partition("non-default args:")[2]):
        if name in _KEPT:
            facts.flags[name] = value.strip().strip("'")[:200]
    for field, flag in (
        ("block_size", "block_size"), ("max_num_seqs", "max_num_seqs"), ("max_model_len", "max_model_len"),
        ("model", "model_tag"), ("model", "model"),
    ):  # fmt: skip
        if flag in facts.flags:
            given = facts.flags[flag]
            told = line._replace(text=f"non-default args: {flag} = {given}")
            facts.note(field, given if field == "model" else count(given), told)


def _refusal(facts: Facts, line: Line) -> None:
    at = next((text_at for mark in _REFUSALS if (text_at := line.text.find(mark)) >= 0), -1)
    if at < 0 or "sampler" in line.text:
        return
    start = max(line.text.rfind("Error: ", 0, at) + len("Error: "), 0) if "Error: " in line.text[:at] else at
    known = facts.values.get("refusal")
    if known is None or "out of memory" in str(known):
        facts.note("refusal", line.text[start : start + 600], line)
    if match := _NEEDED.search(line.text):
        facts.note("needed_bytes", size(match[1], match[2]), line)
        facts.note_size("kv_bytes", size(match[3], match[4]), line)
    if match := _ESTIMATED.search(line.text):
        facts.note("estimated_max_model_len", count(match[1]), line)
    if match := _TOO_LONG.search(line.text):
        facts.note("max_model_len", count(match[1]), line)
        facts.note("tokens", count(match[2]), line, once=True)


def _finished(facts: Facts) -> Receipt:
    values = facts.values
    peak, weights = values.get("peak_torch"), values.get("weights_bytes")
    if "activation_bytes" not in values and isinstance(peak, int) and isinstance(weights, int):
        values["activation_bytes"] = max(0, peak - weights)  # 0.6.2 to 0.6.4 printed the peak of torch alone
    told_ranks = facts.ranks_of("kv_bytes") if facts.ranks_of("kv_bytes") > 1 else 0
    asked = [count(facts.flags.get(flag, "")) or 1 for flag in ("tensor_parallel_size", "pipeline_parallel_size")]
    if told_ranks or "tensor_parallel_size" in facts.flags:
        values["ranks"] = max(told_ranks, asked[0] * asked[1])
    version = version_pair(str(values.get("version") or ""))
    if version is not None:
        # PR #30515; on by default since 0.20.0 (its envs.py; 0.32 itself prints 0.21).
        values["graphs_counted"] = version >= (0, 21)
    estimated = values.get("estimated_graphs")
    if "cuda_graphs_bytes" not in values and isinstance(estimated, int):
        values["cuda_graphs_bytes"] = estimated
    return facts.receipt("vllm")
