"""Decides what each flag of SGLang 0.5 means for the KV budget (0.5.23: `srt/arg_groups/fields/`)."""

from kvbudget.engines.commands.command import Change, Note
from kvbudget.engines.commands.options import MANY, ONE, OPTIONAL, SWITCH, TOGGLE, Syntax, long_names, options
from kvbudget.engines.commands.values import (
    fraction,
    json_object,
    opposite,
    positive,
    positive_or_default,
    text,
    whole,
    yes_or_no,
)
from kvbudget.errors import UnsupportedError

NAME = "sglang"

_FIELDS = {
    "--model-path --model": (ONE, "model", text),
    "--revision": (ONE, "revision", text),
    "--quantization": (ONE, "quantization", text),
    "--context-length": (ONE, "max_model_len", positive),
    "--dtype": (ONE, "dtype", text),
    "--kv-cache-dtype": (ONE, "kv_cache_dtype", text),
    "--mem-fraction-static": (ONE, "gpu_memory_utilization", fraction),
    "--max-running-requests": (ONE, "max_num_seqs", positive),
    "--chunked-prefill-size": (ONE, "max_num_batched_tokens", positive_or_default),
    "--page-size": (ONE, "block_size", positive),
    "--max-total-tokens": (ONE, "max_pool_tokens", positive),
    "--tp-size --tensor-parallel-size --tp": (ONE, "tensor_parallel_size", positive),
    "--pp-size --pipeline-parallel-size --pp": (ONE, "pipeline_parallel_size", positive),
    "--dp-size --data-parallel-size --dp": (ONE, "data_parallel_size", positive),
    "--dcp-size --decode-context-parallel-size": (ONE, "decode_context_parallel_size", positive),
    "--mamba-ssm-dtype": (ONE, "mamba_ssm_cache_dtype", text),
    "--disable-radix-cache": (SWITCH, "enable_prefix_caching", opposite),
    "--disable-overlap-schedule": (SWITCH, "async_scheduling", opposite),
    "--disable-hybrid-swa-memory": (SWITCH, "disable_hybrid_kv_cache_manager", yes_or_no),
    "--disable-cuda-graph --disable-decode-cuda-graph": (SWITCH, "enforce_eager", yes_or_no),
    "--cuda-graph-backend-decode": (ONE, "graph_backend", text),
    "--speculative-algorithm": (ONE, "spec.algorithm", text),
    "--speculative-draft-model-path --speculative-draft-model": (ONE, "spec.model", text),
    "--speculative-num-steps": (ONE, "spec.num_steps", whole),
    "--speculative-eagle-topk": (ONE, "spec.eagle_topk", whole),
    "--speculative-num-draft-tokens": (ONE, "spec.num_draft_tokens", whole),
    "--json-model-override-args": (ONE, "hf_overrides", json_object),
    "--enable-dp-attention": (SWITCH, "dp_attention", yes_or_no),
    "--attn-dp-size --attention-data-parallel-size": (ONE, "attention_ranks", positive),
    "--config": (ONE, "config", text),
}
_STATE = "sizes the pool of recurrent states"
_WINDOW = "divides the memory between full and sliding layers"
_GRAPHS = "changes the memory of CUDA graphs"
_LORA = "LoRA adapters take memory beside the weights"
_OFFLOAD = "weights outside of the GPU leave more for the cache"
_TIER = "a second tier of the cache, outside of the pool"
_EXPERTS = "splits or copies the experts in another way"
_ATTENTION = "may change page size and KV layout"
_DRAFT = "changes the draft's cache"
_SPLIT = "changes which rank holds what of the cache"
_UNMODELLED = (
    (ONE, "--max-prefill-tokens", "sizes the prefill batch"),
    (ONE, "--swa-full-tokens-ratio", _WINDOW),
    (ONE, "--swa-prefix-tails", _WINDOW),
    (ONE, "--c128-page-size", _WINDOW),
    (ONE, "--max-mamba-cache-size", _STATE),
    (ONE, "--mamba-full-memory-ratio", _STATE),
    (ONE, "--mamba-radix-cache-strategy", _STATE),
    (ONE, "--mamba-max-states-per-path", _STATE),
    (SWITCH, "--enable-int8-mamba-checkpoint", _STATE),
    (ONE, "--int8-mamba-ckpt-size", _STATE),
    (SWITCH, "--enable-linear-replayssm", _STATE),
    (SWITCH, "--enable-linear-replayssm-spec", _STATE),
    (ONE, "--linear-replayssm-cache-len", _STATE),
    (ONE, "--attn-cp-size --attention-context-parallel-size", _SPLIT),
    (SWITCH, "--enable-kv-cache-sharding", _SPLIT),
    (SWITCH, "--enable-dsa-cache-layer-split", _SPLIT),
    (SWITCH, "--enable-dp-lm-head", "copies a part of the weights"),
    (ONE, "--moe-dense-tp-size", "copies a part of the weights"),
    (ONE, "--ep-size --expert-parallel-size --ep", _EXPERTS),
    (ONE, "--ep-num-redundant-experts", _EXPERTS),
    (SWITCH, "--enable-eplb", _EXPERTS),
    (SWITCH, "--enable-hierarchical-cache --enable-hicache", _TIER),
    (SWITCH, "--enable-lmcache", _TIER),
    (SWITCH, "--enable-flexkv", _TIER),
    (SWITCH, "--enable-hisparse", _TIER),
    (ONE, "--hisparse-config --hierarchical-sparse-attention-extra-config", _TIER),
    (SWITCH, "--enable-unified-memory", "one memory for all kinds of cache"),
    (SWITCH, "--enable-page-major-kv-layout", _ATTENTION),
    (ONE, "--attention-backend", _ATTENTION),
    (ONE, "--decode-attention-backend", _ATTENTION),
    (ONE, "--prefill-attention-backend", _ATTENTION),
    (ONE, "--qsa-indexer-dtype", "changes the indexer's cache"),
    (SWITCH, "--enable-deepseek-v4-fp4-indexer", "changes the indexer's cache"),
    (ONE, "--model-impl", "another implementation may cache in another way"),
    (ONE, "--load-format", "changes which weights are loaded"),
    (SWITCH, "--is-embedding", "embedding models keep no cache between steps"),
    (SWITCH, "--prefill-only-disable-kv-cache", "no cache at all"),
    (ONE, "--quantization-param-path", "scales of the KV format"),
    (ONE, "--modelopt-quant", "changes the size of the weights"),
    (SWITCH, "--quantize-and-serve", "changes the size of the weights"),
    (ONE, "--cpu-offload-gb", _OFFLOAD),
    (ONE, "--offload-group-size", _OFFLOAD),
    (ONE, "--offload-mode", _OFFLOAD),
    (TOGGLE, "--ple-offload-embedding", _OFFLOAD),
    (ONE, "--kt-weight-path", _OFFLOAD),
    (ONE, "--kt-num-gpu-experts", _OFFLOAD),
    (SWITCH, "--enable-paged-experts", _OFFLOAD),
    (ONE, "--paged-experts-num-resident", _OFFLOAD),
    (SWITCH, "--enable-lora", _LORA),
    (ONE, "--max-lora-rank", _LORA),
    (MANY, "--lora-paths", _LORA),
    (ONE, "--max-loras-per-batch", _LORA),
    (ONE, "--max-loaded-loras", _LORA),
    (ONE, "--cuda-graph-config", _GRAPHS),
    (ONE, "--cuda-graph-backend-prefill", _GRAPHS),
    (ONE, "--cuda-graph-max-bs-decode --cuda-graph-max-bs", _GRAPHS),
    (ONE, "--cuda-graph-max-bs-prefill", _GRAPHS),
    (MANY, "--cuda-graph-bs-decode --cuda-graph-bs", _GRAPHS),
    (MANY, "--cuda-graph-bs-prefill", _GRAPHS),
    (SWITCH, "--disable-prefill-cuda-graph", _GRAPHS),
    (SWITCH, "--enable-torch-compile", _GRAPHS),
    (ONE, "--torch-compile-max-bs", _GRAPHS),
    (SWITCH, "--enable-multimodal", "the profile of image inputs takes memory"),
    (SWITCH, "--language-only", "the vision tower is not loaded"),
    (SWITCH, "--language-model-only", "the vision tower is not loaded"),
    (SWITCH, "--encoder-only", "the language model is not loaded"),
    (ONE, "--speculative-draft-kv-cache-dtype", _DRAFT),
    (ONE, "--speculative-draft-model-quantization", _DRAFT),
    (ONE, "--speculative-draft-window-size", _DRAFT),
    (SWITCH, "--enable-multi-layer-eagle", _DRAFT),
    (SWITCH, "--speculative-adaptive", _DRAFT),
    (ONE, "--speculative-dflash-block-size", _DRAFT),
    (ONE, "--speculative-dspark-block-size", _DRAFT),
    (ONE, "--disaggregation-mode", "prefill and decode are apart"),
    (ONE, "--num-reserved-decode-tokens", "keeps a part of the pool back"),
    (ONE, "--schedule-conservativeness", "keeps a part of the pool back"),
    (SWITCH, "--enable-two-batch-overlap", "two batches run at once"),
    (SWITCH, "--enable-mixed-chunk", "prefill and decode share a batch"),
    (SWITCH, "--enable-memory-saver", "another allocator holds the cache"),
    (ONE, "--device", "another platform than CUDA sizes its pool in another way"),
)
_HARMLESS = {
    "--load-format": ("auto", "safetensors", "pt", "runai_streamer"),
    "--model-impl": ("auto", "sglang"),
    "--device": ("cuda",),
    "--ep-size": ("1",),
    "--attn-cp-size": ("1",),
    "--disaggregation-mode": ("null",),
}
_NO_EFFECT = {
    SWITCH: """--mlx-enable-sampling --sleep-on-idle --use-ray --disaggregation-enable-kv-checksum
        --disaggregation-decode-enable-radix-cache --disaggregation-decode-enable-offload-kvcache
        --enable-pd-role-switch --enable-adaptive-dispatch-to-encoder --enable-pdmux --enable-fp32-lm-head
        --enable-weights-cpu-backup --enable-draft-weights-cpu-backup --enable-custom-logit-processor
        --enable-watermark --enable-return-hidden-states --enable-return-aux-hidden-states
        --enable-return-routed-experts --enable-return-indexer-topk --enable-encoder-swa-bounded-replay
        --disable-outlines-disk-cache --enable-mis --enable-lean-attention --enable-nvidia-megakernel
        --enable-amd-monokernel --disable-flashinfer-autotune --triton-attention-reduce-in-fp32
        --flashinfer-mla-disable-ragged --enable-precise-embedding-interpolation
        --enable-mamba-cache-stochastic-rounding --disable-cuda-graph-padding --enable-profile-cuda-graph
        --enable-cudagraph-gc --debug-cuda-graph --enable-torch-compile-debug-mode
        --enable-layerwise-nvtx-marker --enable-nccl-nvls --enable-symm-mem --disable-custom-all-reduce
        --enable-mscclpp --enable-torch-symm-mem --enable-scattered-sconv --pre-warm-nccl
        --enable-quant-communications --enforce-disable-flashinfer-allreduce-fusion
        --enable-aiter-allreduce-fusion --disable-aiter-allreduce-fusion-in-prefill
        --disable-aiter-allreduce-fusion-in-decode --enable-fused-moe-sum-all-reduce
        --enable-w4a4-mxfp4-megamoe --enable-elastic-expert-backup --enable-waterfill
        --disable-flashinfer-cutlass-moe-fp4-allgather --disable-shared-experts-fusion
        --enforce-shared-experts-fusion --enable-single-batch-overlap --enable-deterministic-inference
        --enable-lora-overlap-loading --lora-use-virtual-experts --enable-session-radix-cache
        --enable-unified-cache-external-linker --enable-linker-mla-dedup
        --enable-broadcast-mm-inputs-process --enable-prefix-mm-cache --trust-mm-content-hashes
        --enable-mm-global-cache --disable-fast-image-processor --trust-remote-code
        --weight-loader-disable-mmap --weight-loader-prefetch-checkpoints
        --weight-loader-drop-cache-after-load --remote-instance-weight-loader-start-seed-via-transfer-engine
        --delete-ckpt-after-loading --checkpoint-engine-wait-weights-before-ready --log-requests
        --show-time-cost --enable-metrics --enable-mfu-metrics --enable-metrics-for-all-schedulers
        --enable-request-time-stats-logging --enable-forward-pass-metrics --enable-trace
        --export-metrics-to-file --enable-prefill-cp --enable-cp-decode-attn-tp
        --enable-dp-attention-local-control-broadcast --enable-attn-tp-input-scattered
        --enable-shared-experts-attn-tp --enable-dense-mlp-attn-tp --enable-layernorm-sp
        --enable-megamoe-for-layernorm-sp --disable-attn-tp-gather --enable-p2p-check
        --enable-dynamic-chunking --enable-priority-scheduling --disable-priority-preemption
        --abort-on-priority-when-disabled --schedule-low-priority-values-first
        --disable-chunked-prefix-cache --enable-prefill-delayer --enable-response-store
        --skip-tokenizer-init --enable-http-worker-reuseport --smg-grpc-mode --grpc-mode
        --skip-server-warmup --enable-http2 --enable-ssl-refresh --trust-request-chat-template
        --enable-cache-report --return-input-ids --return-output-ids --strip-thinking-cache
        --enable-strict-thinking --allow-auto-truncate --stream-response-default-include-usage
        --incremental-streaming-output --enable-streaming-session --constrained-json-disable-any-whitespace
        --enable-dynamic-batch-tokenizer --enable-tokenizer-batch-encode --disable-tokenizer-batch-decode
        --speculative-dspark-align-verify-tokens-to-graph-tier --speculative-use-rejection-sampling
        --speculative-use-block-verification""",
    TOGGLE: """--enable-tf32-matmul --enable-decoder-swa-bounded-replay --enable-fused-qk-norm-rope
        --enable-dsa-fused-indexer --dllm-fdfo --experts-shared-outer-loras --lora-strict-loading
        --mm-enable-dp-encoder --dcp-replicate-q-proj --enable-tp-lm-head-all-to-all
        --speculative-enable-w4a4-mxfp4-megamoe""",
    ONE: """--base-gpu-id --gpu-id-step --random-seed --watchdog-timeout --soft-watchdog-timeout
        --decoupled-spec-bind-endpoint --decoupled-spec-rank --decoupled-spec-role
        --disaggregation-decode-allocation-policy --disaggregation-transfer-backend
        --disaggregation-bootstrap-port --disaggregation-ib-device --disaggregation-decode-retraction-backup
        --disaggregation-decode-extra-slots --disaggregation-decode-polling-interval
        --optimistic-prefill-attempts --encoder-transfer-backend --encoder-bootstrap-port
        --pdmux-config-path --sm-group-num --disaggregation-decode-host-receive-threshold --watermark-config
        --return-hidden-states-mode --sampling-mask-max-tokens --prefill-kv-cache-dequant-dtype
        --grammar-backend --fp8-gemm-backend --fp4-gemm-backend --bf16-gemm-backend --dsa-prefill-backend
        --dsv4-prefill-backend --dsa-triton-union --dsa-decode-backend --dsv4-attn-backend
        --dsa-paged-mqa-logits-backend --dsa-topk-backend --triton-attention-num-kv-splits
        --triton-attention-split-tile-size --mamba-backend --mamba-cache-philox-rounds
        --mamba-track-interval --linear-attn-backend --linear-attn-decode-backend
        --linear-attn-prefill-backend --linear-attn-verify-backend --cuda-graph-max-seq-len-prefill
        --cuda-graph-prefill-max-context/--context-bucket --boundary-reduction
        --flashinfer-allreduce-fusion-backend --moe-a2a-backend --deepep-v2-mode --moe-runner-backend
        --flashinfer-mxfp4-moe-precision --deepep-mode --fuseep-mode --deepep-dispatcher-output-dtype
        --flashinfer-a2a-dispatch-type --ep-dispatch-algorithm --init-expert-location --eplb-algorithm
        --eplb-rebalance-num-iterations --eplb-rebalance-layers-per-chunk
        --eplb-min-rebalancing-utilization-threshold --expert-distribution-recorder-mode
        --expert-distribution-recorder-buffer-size --expert-balancedness-report-mode --deepep-config
        --elastic-ep-backend --mooncake-ib-device --elastic-ep-join-mode --elastic-ep-scale-timeout
        --kt-method --kt-cpuinfer --kt-threadpool-count --kt-max-deferred-experts-per-token
        --tbo-token-distribution-threshold --offload-num-in-group --offload-prefetch-step
        --ple-offload-backend --ple-offload-dir --dllm-algorithm --dllm-algorithm-config
        --rl-on-policy-target --lora-eviction-policy --lora-backend --max-lora-chunk-size
        --lora-drain-wait-threshold --radix-eviction-policy --radix-eviction-policy-config
        --radix-cache-backend --hicache-host-memory-mode --hicache-ratio --hicache-size
        --hicache-host-memory-fraction --hicache-write-policy --hicache-io-backend --hicache-mem-layout
        --hicache-storage-backend --hicache-storage-prefetch-policy --hicache-storage-backend-extra-config
        --hicache-storage-prefetch-retry-poll-interval --hicache-storage-prefetch-retry-max-attempts
        --unified-cache-external-linker-backend --unified-cache-external-linker-config --lmcache-config-file
        --flexkv-config-file --mm-attention-backend --mm-process-config --mm-processor-worker-num
        --mm-io-worker-num --media-url-max-file-size-mb --mm-preprocess-cache-size-mb
        --limit-mm-data-per-request --image-processor-backend --mm-global-cache-backend
        --mm-feature-transport --model-loader-extra-config --model-config-parser
        --modelopt-checkpoint-restore-path --modelopt-checkpoint-save-path --modelopt-export-path
        --rl-quant-profile --startup-weight-load-mode --weight-loader-prefetch-num-threads
        --remote-instance-weight-loader-seed-instance-ip
        --remote-instance-weight-loader-seed-instance-service-port --remote-instance-weight-loader-backend
        --engine-info-bootstrap-port --modelexpress-config --download-dir --decrypted-config-file
        --decrypted-draft-config-file --weight-cache-mode --weight-cache-socket --weight-cache-timeout
        --log-level --log-level-http --log-requests-level --log-requests-format --crash-dump-folder
        --smg-http-sidecar-port/--grpc-http-sidecar-port --load-snapshot-publish-interval
        --tokenizer-metrics-custom-labels-header --extra-metric-labels --gc-warning-threshold-secs
        --decode-log-interval --kv-events-config --load-publish-endpoint --forward-pass-metrics-worker-id
        --forward-pass-metrics-ipc-name --trace-modules --otlp-traces-endpoint --otlp-service-name
        --export-metrics-to-file-dir --kv-canary --kv-canary-sweep-interval
        --debug-tensor-dump-output-folder --debug-tensor-dump-input-file --msprobe-dump-config --nccl-port
        --dist-timeout --dist-init-addr/--nccl-init-addr --gated-launch-port --nnodes --node-rank
        --pp-max-micro-batch-size --pp-async-batch-depth --load-balance-method
        --moe-dp-size/--moe-data-parallel-size --dwdp-size --dcp-comm-backend --cp-strategy
        --shared-experts-tp-size --elastic-ep-join-rank-offset --elastic-ep-initial-size --max-ep-size
        --max-queued-requests --prefill-decode-interval --prefill-decode-interval-min-bs
        --prefill-max-requests --schedule-policy --default-priority-value
        --priority-scheduling-preemption-threshold --retraction-policy --num-continuous-decode-steps
        --scheduler-recv-interval --prefill-delayer-max-delay-passes
        --prefill-delayer-token-usage-low-watermark --prefill-delayer-queue-min-ratio
        --prefill-delayer-max-delay-ms --min-free-slots-delay --tokenizer-path --tokenizer-mode
        --tokenizer-backend --tokenizer-worker-num --detokenizer-worker-num --host --port
        --fastapi-root-path --grpc-port --grpc-response-timeout-secs --sidecar --warmups
        --http2-max-concurrent-streams --http2-initial-connection-window-size --ssl-keyfile --ssl-certfile
        --ssl-ca-certs --ssl-keyfile-password --api-key --admin-api-key --served-model-name --weight-version
        --chat-template --hf-chat-template-name --completion-template --file-storage-path
        --default-chat-template-kwargs --tool-server --sampling-defaults --asr-max-buffer-seconds
        --asr-max-concurrent-sessions --preferred-sampling-params --stream-interval --batch-notify-size
        --constrained-json-whitespace-pattern --constrained-json-max-whitespace-cnt
        --dynamic-batch-tokenizer-batch-size --dynamic-batch-tokenizer-batch-timeout --uno-lora-path
        --speculative-draft-model-revision --speculative-draft-load-format
        --speculative-domino-candidate-pool-size --speculative-dspark-sps-table-path
        --speculative-dspark-confidence-sts-path --speculative-accept-threshold-single
        --speculative-accept-threshold-acc --speculative-token-map --speculative-attention-mode
        --speculative-draft-attention-backend --speculative-dsa-topk-backend --speculative-draft-sink-size
        --speculative-moe-runner-backend --speculative-moe-a2a-backend --speculative-adaptive-config
        --spec-trace-dir --speculative-ngram-min-bfs-breadth --speculative-ngram-max-bfs-breadth
        --speculative-ngram-match-type --speculative-ngram-max-trie-depth --speculative-ngram-capacity
        --speculative-ngram-external-corpus-path --speculative-ngram-external-sam-budget
        --speculative-ngram-external-corpus-max-tokens""",
    MANY: """--numa-node --gc-threshold --decoupled-spec-connect-endpoints --encoder-urls --encoder-register-urls
        --return-aux-hidden-state-layer-ids --flashinfer-autotune-skip-ops --lora-target-modules
        --allowed-media-domains --custom-weight-loader
        --remote-instance-weight-loader-send-weights-group-ports --log-requests-target
        --uvicorn-access-log-exclude-prefixes --tokenizer-metrics-allowed-custom-labels
        --bucket-time-to-first-token --bucket-inter-token-latency --bucket-e2e-request-latency
        --prompt-tokens-buckets --generation-tokens-buckets --debug-tensor-dump-layers --forward-hooks
        --prefill-delayer-forward-passes-buckets --prefill-delayer-wait-seconds-buckets --sidecar-args""",
    OPTIONAL: """--model-checksum""",
}
# Gone by 0.5.23, still in people's files
_OLDER = {
    SWITCH: """--enable-flashinfer-allreduce-fusion --enable-ep-moe --enable-deepep-moe --enable-flashinfer-mla
        --enable-torch-native --disable-mla --disable-jump-forward --disable-regex-jump-forward
        --disable-nan-detection --enable-nan-detection --disable-overlap-cg-plan --disable-disk-cache
        --flashinfer-mla-backend --disable-flashinfer --disable-flashinfer-sampling""",
    ONE: """--sampling-backend --reasoning-parser --tool-call-parser --kv-canary-real-data --monokernel-backend
        --max-micro-batch-size --log-level-http-json""",
}
# server_args.py of the releases from 0.4.0 to 0.5.10: the first without it; the others' release was not read
_GONE = {
    "--disable-nan-detection": "0.4.1", "--disable-disk-cache": "0.4.2", "--disable-flashinfer": "0.4.2",
    "--disable-flashinfer-sampling": "0.4.2", "--disable-jump-forward": "0.4.4", "--disable-mla": "0.4.6",
    "--enable-flashinfer-mla": "0.4.8", "--disable-overlap-cg-plan": "0.4.10", "--max-micro-batch-size": "0.5.4",
    "--enable-ep-moe": "0.5.5", "--enable-deepep-moe": "0.5.5",
}  # fmt: skip
_INSTEAD = {
    "--disable-flashinfer": "use --attention-backend", "--disable-flashinfer-sampling": "use --sampling-backend",
    "--enable-flashinfer-mla": "use --attention-backend flashinfer", "--enable-ep-moe": "use --ep-size",
    "--enable-deepep-moe": "use --moe-a2a-backend deepep", "--max-micro-batch-size": "use --pp-max-micro-batch-size",
}  # fmt: skip
TABLE = options(_FIELDS, _UNMODELLED, _NO_EFFECT, _HARMLESS) | options({}, (), _OLDER)
SYNTAX = Syntax(equals=True, prefixes=long_names(TABLE))

VARIABLES = {
    "PYTORCH_CUDA_ALLOC_CONF": "changes how much memory fragmentation takes",
    "SGLANG_CUTLASS_MOE": "changes the workspace of the experts",
}
# vLLM's words for SGLang's algorithms; the others mean the same when written small
_METHODS = {"nextn": "mtp", "standalone": "draft_model", "lookahead": "ngram"}


def refused_by(flag: str, version: str) -> Change | None:
    """Why SGLang `version` ("" is the newest known) does not take `flag`; None where it does."""
    since = _GONE.get(flag)
    if since is None or (version and _numbers(version) < _numbers(since)):
        return None
    major, minor, patch = _numbers(since)
    return Change(flag, gone=True, since=since, other=f"{major}.{minor}.{patch - 1}", instead=_INSTEAD.get(flag, ""))


def _numbers(version: str) -> tuple[int, int, int]:
    """(0, 5, 3) of "v0.5.3.post1"; without a patch number it is the last one."""
    parts = ["".join(c for c in part if c in "0123456789") for part in version.split(".")[:3]]
    major, minor, patch = (
        (int(part[:6] or 0) for part in (*parts, "", "999999")[:3]) if len(parts) < 3 else map(int, parts)
    )
    return major, minor, patch


def settle(values: dict[str, object], _notes: list[Note]) -> None:
    """Translate the speculation to vLLM's keys; what only SGLang has keeps its name beside them."""
    spec = {name[5:]: values.pop(name) for name in [name for name in values if name.startswith("spec.")]}
    algorithm = str(spec.pop("algorithm", "")).lower()
    if algorithm and algorithm != "none":
        drafts = spec.pop("num_draft_tokens", None)
        tokens = spec.get("num_steps", drafts)
        config: dict[str, object] = {"method": _METHODS.get(algorithm, algorithm)}
        if tokens is not None:
            config["num_speculative_tokens"] = tokens
        if drafts is not None:
            config["num_draft_tokens"] = drafts
        values["speculative_config"] = config | spec
    _refuse_attention_ranks(values)
    if str(values.pop("graph_backend", "")).lower() == "disabled":
        values["enforce_eager"] = True


def _refuse_attention_ranks(values: dict[str, object]) -> None:
    """Data-parallel attention lies inside the tensor-parallel ranks (layers/dp_attention.py): --dp pools on --tp ranks.

    Each pool's rank holds all attention heads of its share, and the experts are split over all: no rule here has it.
    """
    inside, pools = values.pop("dp_attention", False), values.pop("attention_ranks", None)
    if pools is None and inside:
        pools = values.get("data_parallel_size", 1)
    if not isinstance(pools, int) or pools < 2:
        return
    ranks = values.get("tensor_parallel_size", 1)
    each = max(1, ranks // pools) if isinstance(ranks, int) else 1
    raise UnsupportedError(
        f"in the command: data-parallel attention ({pools} pools on {ranks} tensor-parallel ranks): what copied "
        "attention weights and split experts leave for each pool is not computed here",
        fix=f"plan one of the {pools} pools with the memory that its log gives it: kvbudget plan MODEL --engine sglang "
        f"--tensor-parallel-size {each} --kv-cache-memory-bytes SIZE",
    )
