"""Decides what each flag of vLLM 0.32 means for the KV budget.

The list is that of `engine/arg_utils.py`, `entrypoints/launchers/cli_args.py` and `utils/argparse_utils.py`; flags of
older versions stand apart, because files outlive versions.
"""

from collections.abc import Mapping

from kvbudget.engines.commands.command import Note
from kvbudget.engines.commands.options import MANY, ONE, OPTIONAL, SWITCH, TOGGLE, Syntax, long_names, options
from kvbudget.engines.commands.values import (
    fraction,
    human,
    human_or_auto,
    json_object,
    positive,
    positive_or_default,
    text,
    whole,
    whole_numbers,
    yes_or_no,
)
from kvbudget.engines.commands.vllm_releases import refused_by

NAME = "vllm"
DEFAULT_MODEL = "Qwen/Qwen3-0.6B"  # config/model.py

_FIELDS = {
    "--model": (ONE, "model", text),
    "--model-tag": (ONE, "model", text),
    "--revision": (ONE, "revision", text),
    "--quantization -q": (ONE, "quantization", text),
    "--max-model-len": (ONE, "max_model_len", human_or_auto),
    "--max-num-seqs": (ONE, "max_num_seqs", positive),
    "--max-num-batched-tokens": (ONE, "max_num_batched_tokens", human),
    "--block-size": (ONE, "block_size", positive),
    "--dtype": (ONE, "dtype", text),
    "--kv-cache-dtype": (ONE, "kv_cache_dtype", text),
    "--tensor-parallel-size -tp": (ONE, "tensor_parallel_size", positive),
    "--pipeline-parallel-size -pp": (ONE, "pipeline_parallel_size", positive),
    "--decode-context-parallel-size -dcp": (ONE, "decode_context_parallel_size", positive),
    "--data-parallel-size -dp": (ONE, "data_parallel_size", positive),
    "--gpu-memory-utilization --device-memory-utilization": (ONE, "gpu_memory_utilization", fraction),
    "--kv-cache-memory-bytes": (ONE, "kv_cache_memory_bytes", human),
    "--num-gpu-blocks-override": (ONE, "num_gpu_blocks_override", positive_or_default),
    "--async-scheduling": (TOGGLE, "async_scheduling", yes_or_no),
    "--enable-prefix-caching": (TOGGLE, "enable_prefix_caching", yes_or_no),
    "--enable-chunked-prefill": (TOGGLE, "enable_chunked_prefill", yes_or_no),
    "--disable-hybrid-kv-cache-manager": (TOGGLE, "disable_hybrid_kv_cache_manager", yes_or_no),
    "--mamba-cache-dtype": (ONE, "mamba_cache_dtype", text),
    "--mamba-ssm-cache-dtype": (ONE, "mamba_ssm_cache_dtype", text),
    "--enable-expert-parallel -ep": (TOGGLE, "enable_expert_parallel", yes_or_no),
    "--enforce-eager": (TOGGLE, "enforce_eager", yes_or_no),
    "--speculative-config -sc": (ONE, "speculative_config", json_object),
    "--hf-overrides": (ONE, "hf_overrides", json_object),
    "--rope-scaling": (ONE, "rope_scaling", json_object),
    "--rope-theta": (ONE, "rope_theta", text),
    "--spec-method": (ONE, "spec.method", text),
    "--spec-model --speculative-model": (ONE, "spec.model", text),
    "--spec-tokens --num-speculative-tokens": (ONE, "spec.num_speculative_tokens", whole),
    "--optimization-level -O": (ONE, "optimization_level", text),
    "--device-ids": (ONE, "device_ids", text),
    "--config": (ONE, "config", text),
}
_LORA = "LoRA adapters take memory beside the weights"
_IMAGES = "the profile run of image inputs takes memory"
_GRAPHS = "changes the memory of CUDA graphs"
_STATE = "changes the recurrent states' blocks"
_OFFLOAD = "weights outside of the GPU leave more for the cache"
_UNMODELLED = (
    (ONE, "--hf-config-path", "takes config.json from elsewhere"),
    (ONE, "--config-format", "reads another file than config.json"),
    (ONE, "--model-impl", "another implementation may cache in another way"),
    (ONE, "--model-class-overrides", "another implementation may cache in another way"),
    (ONE, "--runner --task", "pooling models schedule in another way"),
    (ONE, "--convert", "pooling models schedule in another way"),
    (ONE, "--quantization-config", "changes the size of the weights"),
    (ONE, "--load-format", "changes which weights are loaded"),
    (TOGGLE, "--disable-sliding-window", "windows keep the whole context"),
    (TOGGLE, "--enable-prompt-embeds", "takes memory for embeddings"),
    (TOGGLE, "--enable-sleep-mode", "another allocator holds the cache"),
    (TOGGLE, "--enable-cumem-allocator", "another allocator holds the cache"),
    (ONE, "--cpu-offload-gb", _OFFLOAD),
    (ONE, "--offload-backend", _OFFLOAD),
    (ONE, "--offload-group-size", _OFFLOAD),
    (MANY, "--cpu-offload-params", _OFFLOAD),
    (MANY, "--offload-params", _OFFLOAD),
    (ONE, "--kv-offloading-size", "a second tier of the cache, outside of the pool"),
    (ONE, "--kv-offloading-backend", "a second tier of the cache, outside of the pool"),
    (ONE, "--kv-transfer-config", "a connector may hold and move blocks"),
    (ONE, "--ec-transfer-config", "encoder outputs are kept elsewhere"),
    (ONE, "--ec-manager-config", "sizes the encoder cache"),
    (ONE, "--swap-space", "a second tier of the cache, in the machine's memory"),
    (MANY, "--kv-cache-dtype-skip-layers", "some layers keep another KV format"),
    (TOGGLE, "--kv-sharing-fast-prefill", "changes what shared layers compute"),
    (TOGGLE, "--swa-bounded-replay", "changes what sliding windows keep"),
    (ONE, "--mamba-block-size", _STATE),
    (ONE, "--mamba-cache-mode", _STATE),
    (TOGGLE, "--enable-mamba-shared-prefix-checkpoint", _STATE),
    (TOGGLE, "--use-replayssm", _STATE),
    (ONE, "--replayssm-buffer-len", _STATE),
    (ONE, "--prefill-context-parallel-size -pcp", "splits prefill over more ranks"),
    (TOGGLE, "--enable-eplb", "keeps copies of experts"),
    (ONE, "--eplb-config", "keeps copies of experts"),
    (TOGGLE, "--enable-dbo", "two micro-batches run at once"),
    (ONE, "--ubatch-size", "two micro-batches run at once"),
    (ONE, "--attention-backend", "may change block sizes and KV layout"),
    (ONE, "--attention-config -ac", "may change block sizes and KV layout"),
    (ONE, "--distributed-executor-backend", "may switch asynchronous scheduling off"),
    (ONE, "--max-num-active-seqs", "fewer requests run than max_num_seqs"),
    (ONE, "--max-num-scheduled-tokens", "a step schedules fewer tokens than it is sized for"),
    (ONE, "--watermark", "keeps a share of the blocks free while admitting"),
    (ONE, "--compilation-config -cc", _GRAPHS),
    (MANY, "--cudagraph-capture-sizes --cuda-graph-sizes", _GRAPHS),
    (ONE, "--max-cudagraph-capture-size --max-seq-len-to-capture", _GRAPHS),
    (ONE, "--performance-mode", "throughput mode doubles the batch defaults"),
    (TOGGLE, "--enable-lora", _LORA),
    (MANY, "--lora-modules", _LORA),
    (ONE, "--max-loras", _LORA),
    (ONE, "--max-lora-rank", _LORA),
    (ONE, "--lora-dtype", _LORA),
    (TOGGLE, "--fully-sharded-loras", _LORA),
    (TOGGLE, "--language-model-only", "the vision tower is not loaded"),
    (TOGGLE, "--mm-encoder-only", "the language model is not loaded"),
    (ONE, "--mm-encoder-tp-mode", "the vision tower is split or replicated"),
    (ONE, "--limit-mm-per-prompt", _IMAGES),
    (ONE, "--mm-processor-kwargs", _IMAGES),
    (TOGGLE, "--skip-mm-profiling", _IMAGES),
    (ONE, "--mm-ipc-gpu-memory-gb", "is taken off the pool"),
    (ONE, "--additional-config", "is read by the platform's own plugin"),
    (ONE, "--diffusion-config -dc", "another way of decoding"),
    (ONE, "--engram-config", "tables beside the weights"),
    (ONE, "--num-scheduler-steps", "looks several tokens ahead"),
    (ONE, "--num-lookahead-slots", "looks several tokens ahead"),
    (ONE, "--preemption-mode", "of an engine before V1"),
    (ONE, "--scheduler-cls", "another scheduler"),
    (ONE, "--worker-cls", "another worker may size the pool in another way"),
    (ONE, "--worker-extension-cls", "another worker may size the pool in another way"),
    (ONE, "--device", "another platform than CUDA sizes its pool in another way"),
    (SWITCH, "--headless", "a follower of a start on several machines"),
)
_HARMLESS = {
    "--runner": ("auto", "generate"),
    "--convert": ("auto", "none"),
    "--model-impl": ("auto", "vllm"),
    "--load-format": ("auto", "safetensors", "pt", "runai_streamer", "fastsafetensors", "instanttensor"),
    "--config-format": ("auto", "hf"),
    "--swa-bounded-replay": ("true",),
    "--mm-encoder-tp-mode": ("weights",),
    "--performance-mode": ("balanced", "interactivity"),
    "--distributed-executor-backend": ("mp", "uni"),
    "--mamba-cache-mode": ("auto",),
    "--device": ("auto", "cuda"),
    "--prefill-context-parallel-size": ("1",),
}
_NO_EFFECT = {
    SWITCH: """--data-parallel-multi-port-external-lb/-dpm --grpc --disable-log-stats --aggregate-engine-logging
        --disable-log-requests --use-v2-block-manager --worker-use-ray --engine-use-ray --calculate-kv-scales
        --enable-reasoning --disable-frontend-multiprocessing --enable-lora-bias --disable-mm-preprocessor-cache""",
    TOGGLE: """--trust-request-chat-template --trust-request-mm-kwargs --return-tokens-as-token-ids
        --enable-auto-tool-choice --exclude-tools-when-tool-choice-none --enable-prompt-tokens-details
        --enable-per-request-metrics --enable-server-load-tracking --enable-force-include-usage
        --enable-tokenizer-info-endpoint --enable-log-outputs --enable-log-deltas --cohere-is-reasoning-model
        --log-error-stack --tokens-only --enable-scale-out --disable-uvicorn-access-log --allow-credentials
        --enable-ssl-refresh --enable-request-id-headers --disable-fastapi-docs --enable-offline-docs
        --enable-flash-late-interaction --trust-remote-code --allow-deprecated-quantization
        --enable-return-routed-experts --return-sampling-mask --use-fp64-gumbel --enable-trace-replay
        --disable-cascade-attn --skip-tokenizer-init --sleep-mode-offload-cudagraph --enable-nccl-comm-suspend
        --use-tqdm-on-load --enable-mamba-cache-stochastic-rounding --numa-bind --dcp-q-replicate
        --data-parallel-hybrid-lb/-dph --data-parallel-external-lb/-dpe --enable-hc-sp
        --enable-batch-sharded-sampling --enable-ep-weight-filter --enable-shm-tensor-arena --enable-elastic-ep
        --disable-nccl-for-dp-synchronization --ray-workers-use-nsight --disable-custom-all-reduce
        --enable-fault-tolerance --enable-mm-embeds --interleave-mm-strings --mm-device-do-normalize
        --enable-tower-connector-lora --specialize-active-lora --enable-mixed-moe-lora-format
        --enable-moe-shared-loras --kv-cache-metrics --cudagraph-metrics --enable-layerwise-nvtx-tracing
        --enable-mfu-metrics --enable-logging-iteration-details --jit-monitor-verbose
        --long-prefill-token-threshold-adaptive --disable-chunked-mm-input
        --scheduler-reserve-full-isl --enable-flashinfer-autotune --fail-on-environ-validation
        --enable-log-requests""",
    OPTIONAL: "--hf-token",
    MANY: """--api-key --allowed-media-domains --served-model-name --sleep-preserve-parameter-names
        --logits-processors --ignore-patterns --numa-bind-nodes --numa-bind-cpus --lora-target-modules
        --collect-detailed-traces""",
    ONE: """--api-server-count/-asc --chat-template --chat-template-content-format --default-chat-template-kwargs
        --response-role --tool-call-parser --tool-parser-plugin --tool-strict-level --tool-server --max-log-len
        --sse-keep-alive-interval --cohere-format --anthropic-disabled-thinking-effort --fingerprint-mode
        --fingerprint-value --host --port --grpc-port --data-parallel-supervisor-port --dp-supervisor-probe-interval-s
        --dp-supervisor-probe-timeout-s --dp-supervisor-probe-failure-threshold --uds --uvicorn-log-level
        --disable-access-log-for-endpoints --allowed-origins --allowed-methods --allowed-headers --ssl-keyfile
        --ssl-certfile --ssl-ca-certs --ssl-cert-reqs --ssl-ciphers --root-path --middleware
        --h11-max-incomplete-event-size --h11-max-header-count --tokenizer --tokenizer-mode --seed
        --allowed-local-media-path --code-revision --tokenizer-revision --max-logprobs --logprobs-mode
        --pooler-config --generation-config --override-generation-config --io-processor-plugin
        --renderer-num-workers --download-dir --safetensors-load-strategy --safetensors-prefetch-num-threads
        --safetensors-prefetch-block-size --model-loader-extra-config --pt-load-map-location --mamba-backend
        --mamba-ssu-algorithm --mamba-cache-philox-rounds --reasoning-parser --reasoning-parser-plugin --master-addr
        --master-port --nnodes/-n --node-rank/-r --distributed-timeout-seconds --cpu-distributed-timeout-seconds
        --dcp-comm-backend --dcp-kv-cache-interleave-size --cp-kv-cache-interleave-size --data-parallel-rank/-dpn
        --data-parallel-start-rank/-dpr --data-parallel-size-local/-dpl --data-parallel-address/-dpa
        --data-parallel-rpc-port/-dpp --data-parallel-backend/-dpb --all2all-backend --elastic-ep-max-dp-size
        --dbo-decode-token-threshold --dp-sync-interval --dbo-prefill-token-threshold --expert-placement-strategy
        --max-parallel-loading-workers --fault-tolerance-config --prefix-caching-hash-algo
        --prefix-cache-retention-interval --prefix-match-unit --offload-num-in-group --offload-prefetch-step
        --media-io-kwargs --mm-processor-cache-gb --mm-processor-cache-type --mm-hasher-algorithm
        --mm-shm-cache-max-object-size-mb --mm-encoder-attn-backend --mm-encoder-attn-dtype
        --mm-encoder-fp8-scale-path --mm-encoder-fp8-scale-save-path --mm-encoder-fp8-scale-save-margin
        --video-pruning-rate --video-pruning-method --mm-tensor-ipc --mm-processor-device --max-cpu-loras
        --default-mm-loras --max-lora-cls-labels --logging-config --log-level --log-config-file
        --show-hidden-metrics-for-version --otlp-traces-endpoint --per-request-spec-decode-metrics
        --kv-cache-metrics-sample --custom-histogram-buckets --jit-monitor-mode --max-num-queued-reqs
        --max-num-queued-tokens --long-prefill-token-threshold --scheduling-policy --prefill-schedule-interval
        --stream-interval --ir-op-priority --moe-backend --linear-backend --sparse-indexer-topk-backend
        --watermark-config --kv-events-config --reasoning-config --kernel-config --structured-outputs-config
        --aux-output-config --profiler-config --weight-transfer-config --shutdown-timeout --gdn-prefill-backend
        --kda-prefill-backend --kda-decode-backend --guided-decoding-backend --max-num-partial-prefills
        --max-long-partial-prefills --scheduler-delay-factor --lora-extra-vocab-size --override-pooler-config
        --override-neuron-config --tokenizer-pool-size""",
}
# Gone by 0.32, and without a word on memory (vllm_releases.py says since when)
_OLDER = {
    SWITCH: """--enable-prompt-adapter --disable-async-output-proc --mm-cache-preprocessor
        --speculative-disable-mqa-scorer --expand-tools-even-if-tool-choice-none""",
    TOGGLE: """--guided-decoding-disable-fallback --guided-decoding-disable-any-whitespace
        --guided-decoding-disable-additional-properties --eplb-log-balancedness
        --enable-multimodal-encoder-data-parallel --use-gpu-for-pooling-score --enable-bf16x3-router-gemm
        --enable-mamba-fine-grained-prefix-cache""",
    OPTIONAL: "--multi-step-stream-outputs --disable-logprobs-during-spec-decoding",
    MANY: "--prompt-adapters",
    ONE: """--num-redundant-experts --eplb-step-interval --eplb-window-size --logits-processor-pattern
        --override-attention-dtype --max-context-len-to-capture --chat-template-text-format --quantization-param-path
        --spec-decoding-acceptance-method --typical-acceptance-sampler-posterior-threshold
        --typical-acceptance-sampler-posterior-alpha --speculative-draft-tensor-parallel-size/-spec-draft-tp
        --ngram-prompt-lookup-max --ngram-prompt-lookup-min --speculative-model-quantization
        --speculative-max-model-len --speculative-disable-by-batch-size --max-prompt-adapters
        --max-prompt-adapter-token --tokenizer-pool-extra-config --tokenizer-pool-type --long-lora-scaling-factors
        --qlora-adapter-name-or-path""",
}
TABLE = options(_FIELDS, _UNMODELLED, _NO_EFFECT, _HARMLESS) | options({}, (), _OLDER)
SYNTAX = Syntax(
    equals=True, prefixes=tuple(name for name in long_names(TABLE) if refused_by(name, "") is None), dotted=True
)

# envs.py; those that decide nothing about the cache are not listed
VARIABLES = {
    "VLLM_CPU_KVCACHE_SPACE": "is the pool on a CPU, in GiB",
    "VLLM_ATTENTION_BACKEND": "may change block sizes and KV layout",
    "VLLM_KV_CACHE_LAYOUT": "changes the KV layout",
    "VLLM_SSM_CONV_STATE_LAYOUT": "changes the layout of recurrent states",
    "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "decides whether CUDA graphs are taken off the pool",
    "VLLM_MLA_DISABLE": "MLA models cache expanded keys and values",
    "VLLM_USE_V1": "chooses between two engines of older versions",
    "VLLM_USE_V2_MODEL_RUNNER": "changes how many batches are in flight",
    "PYTORCH_CUDA_ALLOC_CONF": "changes how much memory fragmentation takes",
    "PYTORCH_ALLOC_CONF": "changes how much memory fragmentation takes",
}
FROM_VARIABLES = {
    "VLLM_PP_LAYER_PARTITION": ("pp_layer_partition", whole_numbers),
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": ("allow_long_max_model_len", yes_or_no),
}


def settle(values: dict[str, object], notes: list[Note]) -> None:
    """Put together what several flags say. -O0 captures no CUDA graphs, as --enforce-eager (config/vllm.py)."""
    given = values.pop("speculative_config", None)
    spec = {name.replace("-", "_"): value for name, value in given.items()} if isinstance(given, Mapping) else {}
    for name in ("method", "model", "num_speculative_tokens"):
        if f"spec.{name}" in values:
            spec.setdefault(name, values.pop(f"spec.{name}"))
    if spec:
        values["speculative_config"] = spec
    scaling = values.pop("rope_scaling", None)
    values.pop("rope_theta", None)  # of older versions; it changes no length
    if isinstance(scaling, Mapping):
        others = values.get("hf_overrides")
        values["hf_overrides"] = {"rope_scaling": scaling, **(others if isinstance(others, Mapping) else {})}
    level = str(values.pop("optimization_level", ""))
    if level not in ("", "0", "2", "3"):
        notes.append(
            Note(
                f"-O {level[:80]} changes the memory of CUDA graphs, which is not modelled",
                "give --overhead SIZE of a start-up log",
            )
        )
    if level == "0":
        values.setdefault("enforce_eager", True)
        notes.append(Note("-O0 captures no CUDA graphs: read as --enforce-eager", "nothing, or leave -O0 out"))
    ids = str(values.pop("device_ids", ""))
    if ids:
        values["gpus"] = len([one for one in ids.split(",") if one.strip()])
