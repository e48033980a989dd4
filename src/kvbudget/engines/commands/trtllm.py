"""Decides what each option of `trtllm-serve` (TensorRT-LLM 1.x) means for the KV budget.

Options: `commands/serve.py`; keys of its YAML file: `llmapi/llm_args.py`, written here as dotted paths.
"""

from collections.abc import Mapping

from kvbudget.engines.commands.command import Note
from kvbudget.engines.commands.options import MANY, ONE, SWITCH, TOGGLE, Syntax, options
from kvbudget.engines.commands.values import fraction, opposite, positive, positive_or_default, text, whole, yes_or_no

NAME = "trtllm"
SYNTAX = Syntax(equals=True)

_FIELDS = {
    "--model": (ONE, "model", text),
    "--revision": (ONE, "revision", text),
    "--max-batch-size": (ONE, "max_num_seqs", positive),
    "--max-num-tokens": (ONE, "max_num_batched_tokens", positive),
    "--max-seq-len": (ONE, "max_model_len", positive),
    "--tensor-parallel-size --tp-size": (ONE, "tensor_parallel_size", positive),
    "--pipeline-parallel-size --pp-size": (ONE, "pipeline_parallel_size", positive),
    "--free-gpu-memory-fraction --kv-cache-free-gpu-memory-fraction --kv-cache-config.free-gpu-memory-fraction": (
        ONE,
        "gpu_memory_utilization",
        fraction,
    ),
    "--kv-cache-dtype --kv-cache-config.dtype": (ONE, "kv_cache_dtype", text),
    "--kv-cache-config.tokens-per-block": (ONE, "block_size", positive),
    "--kv-cache-config.enable-block-reuse": (ONE, "enable_prefix_caching", yes_or_no),
    "--disable-kv-cache-reuse": (SWITCH, "enable_prefix_caching", opposite),
    "--kv-cache-config.max-gpu-total-bytes": (ONE, "kv_cache_memory_bytes", positive_or_default),
    "--kv-cache-config.mamba-ssm-cache-dtype": (ONE, "mamba_ssm_cache_dtype", text),
    "--dtype": (ONE, "dtype", text),
    "--disable-overlap-scheduler": (ONE, "async_scheduling", opposite),
    "--speculative-config.decoding-type": (ONE, "spec.method", text),
    "--speculative-config.max-draft-len": (ONE, "spec.num_speculative_tokens", whole),
    "--speculative-config.num-nextn-predict-layers": (ONE, "spec.num_speculative_tokens", whole),
    "--speculative-config.speculative-model-dir --speculative-config.speculative-model": (ONE, "spec.model", text),
    "--config --extra-llm-api-options": (ONE, "config", text),
}
_EXPERTS = "splits the experts in another way"
_GRAPHS = "changes the memory of CUDA graphs"
_UNMODELLED = (
    (ONE, "--backend", "another backend sizes its pool in another way"),
    (ONE, "--max-beam-width", "every beam holds blocks of its own"),
    (ONE, "--context-parallel-size --cp-size", "splits the context over more ranks"),
    (ONE, "--moe-expert-parallel-size --ep-size", _EXPERTS),
    (ONE, "--moe-cluster-parallel-size --cluster-size", _EXPERTS),
    (ONE, "--moe-tensor-parallel-size", _EXPERTS),
    (ONE, "--enable-attention-dp", "every rank holds whole requests"),
    (ONE, "--kv-cache-config.max-tokens", "caps the pool, in tokens"),
    (MANY, "--kv-cache-config.max-attention-window", "sets the windows by layer"),
    (ONE, "--kv-cache-config.sink-token-length", "keeps the first tokens"),
    (ONE, "--kv-cache-config.host-cache-size", "a second tier of the cache, outside of the pool"),
    (ONE, "--kv-cache-config.secondary-offload-min-priority", "a second tier of the cache, outside of the pool"),
    (ONE, "--kv-cache-config.cross-kv-cache-fraction", "divides the pool with the encoder"),
    (ONE, "--kv-cache-config.enable-partial-reuse", "changes what prefixes save"),
    (ONE, "--kv-cache-config.use-uvm", "the pool may leave the GPU"),
    (ONE, "--sparse-attention-config", "changes what is kept of the context"),
    (ONE, "--quant-config", "changes the size of the weights"),
    (ONE, "--attn-backend", "may change block sizes and KV layout"),
    (ONE, "--cuda-graph-config", _GRAPHS),
    (ONE, "--lora-config", "LoRA adapters take memory beside the weights"),
    (ONE, "--enable-lora", "LoRA adapters take memory beside the weights"),
    (ONE, "--scheduler-config", "changes when requests are admitted"),
    (ONE, "--cache-transceiver-config", "prefill and decode are apart"),
    (ONE, "--server-role", "prefill and decode are apart"),
    (ONE, "--load-format", "changes which weights are loaded"),
)
_HARMLESS = {"--backend": ("pytorch",), "--max-beam-width": ("1",), "--load-format": ("auto",)}
_NO_EFFECT = {
    SWITCH: """--trust-remote-code --fail-fast-on-attention-window-too-large --grpc --allow-request-chat-template
        --enable-visual-gen""",
    TOGGLE: "--telemetry --enable-chunked-prefill",
    ONE: """--tokenizer --custom-tokenizer --host --port --log-level --custom-module-dirs --gpus-per-node
        --num-postprocess-workers --reasoning-parser --tool-parser --metadata-server-config-file
        --otlp-traces-endpoint --disagg-cluster-uri --media-io-kwargs --chat-template --served-model-name
        --print-iter-log --enable-iter-perf-stats --iter-perf-stats-interval --enable-iter-req-stats --stream-interval
        --moe-config --return-perf-metrics --perf-metrics-max-requests --guided-decoding-backend --batch-wait-timeout-ms
        --batch-wait-timeout-iters --batch-wait-max-tokens-ratio --torch-compile-config --allreduce-strategy
        --enable-layerwise-nvtx-marker --kv-cache-config.event-buffer-max-size --video-pruning-rate --visual-gen-args
        --kv-cache-config.copy-on-partial-reuse --enable-min-latency --postproc-tokenizer-dir --skip-tokenizer-init
        --hostname""",
}
TABLE = options(_FIELDS, _UNMODELLED, _NO_EFFECT, _HARMLESS)
VARIABLES = {"TRTLLM_ENABLE_PDL": "changes kernels only"}
_METHODS = {"eagle": "eagle3", "drafttarget": "draft_model", "user_provided": "custom"}


def settle(values: dict[str, object], _notes: list[Note]) -> None:
    """Translate the speculation to vLLM's keys."""
    spec = {name[5:]: values.pop(name) for name in [name for name in values if name.startswith("spec.")]}
    if spec:
        method = str(spec.get("method", "")).lower()
        values["speculative_config"] = spec | {"method": _METHODS.get(method, method)}


def flattened(settings: Mapping[str, object], *, prefix: str = "--", depth: int = 0) -> list[str]:
    """Arguments that say what a YAML file of TensorRT-LLM says: nested keys become dotted options."""
    arguments: list[str] = []
    for key, value in settings.items():
        name = prefix + str(key)
        known = name.replace("_", "-") in TABLE
        if isinstance(value, Mapping) and not known and depth < 4:
            arguments += flattened(value, prefix=name + ".", depth=depth + 1)
        elif isinstance(value, list):
            arguments += [f"{name}={','.join(map(str, value))}"]
        elif value is not None:
            arguments.append(f"{name}={str(value).lower() if isinstance(value, bool) else value}")
    return arguments
