"""Decides which flags a release of vLLM does not take: those that were gone by then, and those that came later.

`engine/arg_utils.py` and `entrypoints/openai/cli_args.py` of the releases from 0.4.3 to 0.32, each against the one
before. A flag that was only moved or made an alias is in neither list.
"""

from kvbudget.engines.commands.command import Change
from kvbudget.engines.vllm.versions import numbers_of

Version = tuple[int, int, int]

# (the first release without it, the last with it)
_GONE: dict[tuple[Version, str], str] = {
    ((0, 6, 2), "0.6.1"): """
        --engine-use-ray""",
    ((0, 6, 4), "0.6.3"): """
        --max-context-len-to-capture""",
    ((0, 6, 5), "0.6.4"): """
        --chat-template-text-format""",
    ((0, 6, 6), "0.6.5"): """
        --mm-cache-preprocessor""",
    ((0, 7, 0), "0.6"): """
        --quantization-param-path --worker-use-ray""",
    ((0, 8, 3), "0.8.2"): """
        --disable-logprobs-during-spec-decoding --ngram-prompt-lookup-max --ngram-prompt-lookup-min
        --num-speculative-tokens --spec-decoding-acceptance-method --speculative-disable-by-batch-size
        --speculative-disable-mqa-scorer --speculative-draft-tensor-parallel-size
        --speculative-max-model-len --speculative-model --speculative-model-quantization
        --typical-acceptance-sampler-posterior-alpha --typical-acceptance-sampler-posterior-threshold
        -spec-draft-tp""",
    ((0, 10, 0), "0.9"): """
        --device --enable-reasoning --expand-tools-even-if-tool-choice-none --long-lora-scaling-factors
        --max-prompt-adapter-token --max-prompt-adapters --prompt-adapters --qlora-adapter-name-or-path
        --tokenizer-pool-extra-config --tokenizer-pool-size --tokenizer-pool-type --use-v2-block-manager""",
    ((0, 10, 1), "0.10.0"): """
        --multi-step-stream-outputs --num-scheduler-steps""",
    ((0, 10, 2), "0.10.1"): """
        --enable-prompt-adapter --override-neuron-config""",
    ((0, 11, 0), "0.10"): """
        --disable-async-output-proc --max-seq-len-to-capture --preemption-mode --scheduler-delay-factor""",
    ((0, 11, 1), "0.11.0"): """
        --enable-lora-bias --rope-scaling --rope-theta""",
    ((0, 12, 0), "0.11"): """
        --eplb-log-balancedness --eplb-step-interval --eplb-window-size --guided-decoding-backend
        --guided-decoding-disable-additional-properties --guided-decoding-disable-any-whitespace
        --guided-decoding-disable-fallback --lora-extra-vocab-size --num-lookahead-slots
        --num-redundant-experts --override-pooler-config""",
    ((0, 13, 0), "0.12"): """
        --cuda-graph-sizes --disable-mm-preprocessor-cache --enable-multimodal-encoder-data-parallel --task""",
    ((0, 17, 0), "0.16"): """
        --disable-log-requests --logits-processor-pattern""",
    ((0, 18, 0), "0.17"): """
        --swap-space --use-gpu-for-pooling-score""",
    ((0, 19, 0), "0.18"): """
        --disable-frontend-multiprocessing""",
    ((0, 27, 0), "0.26"): """
        --max-long-partial-prefills --max-num-partial-prefills""",
    ((0, 28, 0), "0.27"): """
        --calculate-kv-scales --override-attention-dtype""",
    ((0, 30, 0), "0.29"): """
        --enable-bf16x3-router-gemm""",
    ((0, 31, 0), "0.30"): """
        --enable-mamba-fine-grained-prefix-cache""",
}
_CAME: dict[Version, str] = {
    (0, 5, 0): """
        --preemption-mode --qlora-adapter-name-or-path --rope-theta""",
    (0, 5, 1): """
        --otlp-traces-endpoint --spec-decoding-acceptance-method --speculative-draft-tensor-parallel-size
        --typical-acceptance-sampler-posterior-alpha --typical-acceptance-sampler-posterior-threshold
        -spec-draft-tp""",
    (0, 5, 3): """
        --cpu-offload-gb --disable-logprobs-during-spec-decoding --enable-prompt-adapter --ignore-patterns
        --max-prompt-adapter-token --max-prompt-adapters --prompt-adapters""",
    (0, 5, 4): """
        --disable-frontend-multiprocessing --return-tokens-as-token-ids""",
    (0, 5, 5): """
        --collect-detailed-traces --limit-mm-per-prompt --num-scheduler-steps
        --speculative-model-quantization""",
    (0, 6, 0): """
        --config --disable-async-output-proc --enable-auto-tool-choice --override-neuron-config
        --tool-call-parser""",
    (0, 6, 1): """
        --config-format""",
    (0, 6, 2): """
        --disable-fastapi-docs --mm-processor-kwargs --multi-step-stream-outputs""",
    (0, 6, 3): """
        --scheduling-policy --speculative-disable-mqa-scorer --tool-parser-plugin""",
    (0, 6, 4): """
        --allowed-local-media-path --chat-template-text-format --enable-lora-bias
        --enable-prompt-tokens-details --hf-overrides --override-pooler-config --task""",
    (0, 6, 5): """
        --chat-template-content-format --compilation-config --kv-transfer-config --logits-processor-pattern
        --mm-cache-preprocessor --worker-cls -O""",
    (0, 6, 6): """
        --disable-mm-preprocessor-cache --enable-request-id-headers --generation-config""",
    (0, 7, 0): """
        --calculate-kv-scales --enable-sleep-mode""",
    (0, 7, 1): """
        --enable-reasoning --override-generation-config --reasoning-parser""",
    (0, 7, 2): """
        --model-impl""",
    (0, 7, 3): """
        --additional-config --long-prefill-token-threshold --max-long-partial-prefills
        --max-num-partial-prefills --scheduler-cls""",
    (0, 8, 0): """
        --enable-expert-parallel --enable-server-load-tracking --enable-ssl-refresh --hf-config-path
        --show-hidden-metrics-for-version --use-tqdm-on-load --worker-extension-cls""",
    (0, 8, 2): """
        --disable-cascade-attn --disable-uvicorn-access-log --speculative-config""",
    (0, 8, 3): """
        --data-parallel-size --prefix-caching-hash-algo -dp""",
    (0, 8, 4): """
        --disable-chunked-mm-input --hf-token""",
    (0, 9, 0): """
        --cuda-graph-sizes --data-parallel-address --data-parallel-rpc-port --data-parallel-size-local
        --data-parallel-start-rank --enable-prompt-embeds --guided-decoding-disable-additional-properties
        --guided-decoding-disable-any-whitespace --guided-decoding-disable-fallback --headless
        --kv-events-config --pt-load-map-location -dpa -dpl -dpp -dpr""",
    (0, 9, 1): """
        --api-server-count --data-parallel-backend --disable-hybrid-kv-cache-manager
        --enable-multimodal-encoder-data-parallel --log-config-file -asc -dpb""",
    (0, 9, 2): """
        --data-parallel-rank --enable-eplb --enable-force-include-usage --eplb-log-balancedness
        --eplb-step-interval --eplb-window-size --expand-tools-even-if-tool-choice-none --media-io-kwargs
        --num-redundant-experts --override-attention-dtype -dpn""",
    (0, 10, 0): """
        --async-scheduling --data-parallel-hybrid-lb --default-mm-loras --enable-tokenizer-info-endpoint
        --interleave-mm-strings --logprobs-mode""",
    (0, 10, 1): """
        --convert --enable-log-outputs --enable-log-requests --exclude-tools-when-tool-choice-none
        --kv-sharing-fast-prefill --logits-processors --mamba-cache-dtype --mamba-ssm-cache-dtype
        --mm-processor-cache-gb --runner --skip-mm-profiling --tool-server --uds""",
    (0, 10, 2): """
        --decode-context-parallel-size --eplb-config --h11-max-header-count --h11-max-incomplete-event-size
        --io-processor-plugin --kv-cache-memory-bytes --log-error-stack --mm-encoder-tp-mode
        --safetensors-load-strategy -dcp""",
    (0, 11, 0): """
        --allowed-media-domains --dbo-decode-token-threshold --dbo-prefill-token-threshold --enable-dbo
        --expert-placement-strategy --mm-processor-cache-type --mm-shm-cache-max-object-size-mb
        --pooler-config --structured-outputs-config --trust-request-chat-template --video-pruning-rate""",
    (0, 11, 1): """
        --aggregate-engine-logging --all2all-backend --cudagraph-capture-sizes --data-parallel-external-lb
        --dcp-kv-cache-interleave-size --disable-nccl-for-dp-synchronization --ec-transfer-config
        --enable-mm-embeds --kv-offloading-backend --kv-offloading-size --mamba-block-size --master-addr
        --master-port --max-cudagraph-capture-size --mm-encoder-attn-backend --nnodes --node-rank
        --reasoning-parser-plugin --stream-interval --tokens-only -dpe -dph -n -r""",
    (0, 12, 0): """
        --cp-kv-cache-interleave-size --kv-cache-metrics --kv-cache-metrics-sample
        --prefill-context-parallel-size -cc -pcp""",
    (0, 13, 0): """
        --attention-backend --attention-config --cudagraph-metrics --enable-layerwise-nvtx-tracing
        --profiler-config -ac""",
    (0, 14, 0): """
        --allow-deprecated-quantization --default-chat-template-kwargs --enable-log-deltas
        --enable-logging-iteration-details --enable-mfu-metrics --enable-offline-docs
        --enable-return-routed-experts --enable-tower-connector-lora --ubatch-size -ep""",
    (0, 15, 0): """
        --disable-access-log-for-endpoints --enable-flashinfer-autotune --kernel-config --mamba-cache-mode
        --mm-encoder-only --specialize-active-lora --ssl-ciphers --weight-transfer-config""",
    (0, 17, 0): """
        --cpu-offload-params --enable-elastic-ep --fail-on-environ-validation --language-model-only
        --moe-backend --offload-backend --offload-group-size --offload-num-in-group --offload-params
        --offload-prefetch-step --performance-mode --use-gpu-for-pooling-score""",
    (0, 18, 0): """
        --dcp-comm-backend --distributed-timeout-seconds --enable-ep-weight-filter --gdn-prefill-backend
        --grpc --shutdown-timeout""",
    (0, 19, 0): """
        --kv-cache-dtype-skip-layers --lora-target-modules --mm-tensor-ipc --reasoning-config
        --renderer-num-workers --scheduler-reserve-full-isl -sc""",
    (0, 20, 0): """
        --enable-flash-late-interaction --enable-mamba-cache-stochastic-rounding --ir-op-priority
        --mamba-backend --mamba-cache-philox-rounds --numa-bind --numa-bind-cpus --numa-bind-nodes""",
    (0, 21, 0): """
        --fingerprint-mode --fingerprint-value --mm-encoder-attn-dtype --mm-encoder-fp8-scale-path
        --mm-encoder-fp8-scale-save-margin --mm-encoder-fp8-scale-save-path
        --safetensors-prefetch-block-size --safetensors-prefetch-num-threads""",
    (0, 22, 0): """
        --cpu-distributed-timeout-seconds --data-parallel-multi-port-external-lb
        --data-parallel-supervisor-port --dp-supervisor-probe-failure-threshold
        --dp-supervisor-probe-interval-s --dp-supervisor-probe-timeout-s --enable-cumem-allocator
        --enable-mixed-moe-lora-format --linear-backend --quantization-config --spec-method --spec-model
        --spec-tokens --use-fp64-gumbel -dpm""",
    (0, 24, 0): """
        --device-ids --diffusion-config --jit-monitor-verbose --prefill-schedule-interval --watermark -dc""",
    (0, 25, 0): """
        --enable-per-request-metrics --jit-monitor-mode --mm-ipc-gpu-memory-gb --model-class-overrides""",
    (0, 26, 0): """
        --enable-bf16x3-router-gemm --enable-moe-shared-loras --max-num-scheduled-tokens --prefix-match-unit""",
    (0, 27, 0): """
        --cohere-format --cohere-is-reasoning-model --enable-fault-tolerance --fault-tolerance-config
        --kda-prefill-backend --mamba-ssu-algorithm --mm-hasher-algorithm --replayssm-buffer-len
        --use-replayssm --video-pruning-method""",
    (0, 28, 0): """
        --ec-manager-config --mm-device-do-normalize --mm-processor-device --return-sampling-mask""",
    (0, 29, 0): """
        --dcp-q-replicate --enable-batch-sharded-sampling --enable-trace-replay --max-num-queued-reqs
        --max-num-queued-tokens --per-request-spec-decode-metrics --prefix-cache-retention-interval
        --sse-keep-alive-interval""",
    (0, 30, 0): """
        --dp-sync-interval --elastic-ep-max-dp-size --enable-mamba-fine-grained-prefix-cache
        --enable-nccl-comm-suspend --enable-scale-out --engram-config --kda-decode-backend
        --sparse-indexer-topk-backend --watermark-config""",
    (0, 31, 0): """
        --anthropic-disabled-thinking-effort --aux-output-config --device-memory-utilization
        --enable-mamba-shared-prefix-checkpoint --log-level --logging-config
        --long-prefill-token-threshold-adaptive --max-lora-cls-labels --max-num-active-seqs
        --sleep-preserve-parameter-names --swa-bounded-replay --tool-strict-level --trust-request-mm-kwargs""",
    (0, 32, 0): """
        --custom-histogram-buckets --enable-hc-sp --enable-shm-tensor-arena --grpc-port
        --sleep-mode-offload-cudagraph""",
}
# envs.py: the first release that does not read it
_VARIABLE_GONE: dict[str, Version] = {"VLLM_USE_V1": (0, 11, 1), "VLLM_ATTENTION_BACKEND": (0, 16, 0)}
_V1_BY_DEFAULT: Version = (0, 8, 0)
# What to write instead; a flag that is not here is left out.
_INSTEAD = {
    "--rope-scaling": """use --hf-overrides '{"rope_scaling": {...}}'""",
    "--rope-theta": """use --hf-overrides '{"rope_theta": ...}'""",
    "--guided-decoding-backend": "use --structured-outputs-config.backend",
    "--guided-decoding-disable-any-whitespace": "use --structured-outputs-config.disable_any_whitespace",
    "--task": "use --runner or --convert; without it text is generated",
    "--max-seq-len-to-capture": "use --max-cudagraph-capture-size, which counts sequences",
    "--cuda-graph-sizes": "use --cudagraph-capture-sizes",
    "--disable-mm-preprocessor-cache": "use --mm-processor-cache-gb 0",
    "--override-pooler-config": "use --pooler-config",
    "--disable-log-requests": "leave it out: requests are logged with --enable-log-requests only",
    "--num-scheduler-steps": "leave it out: --async-scheduling takes its place",
    "--enable-reasoning": "leave it out: --reasoning-parser alone is enough",
    "--swap-space": "leave it out: nothing is swapped; --kv-offloading-size is the second tier",
    "--num-redundant-experts": "use --eplb-config.num_redundant_experts",
    "--eplb-window-size": "use --eplb-config.window_size",
    "--eplb-step-interval": "use --eplb-config.step_interval",
    "--eplb-log-balancedness": "use --eplb-config.log_balancedness",
    "--enable-multimodal-encoder-data-parallel": "use --mm-encoder-tp-mode data",
    "--quantization-param-path": "leave it out: scales are in the checkpoint",
    "--speculative-model": "use --speculative-config.model",
    "--num-speculative-tokens": "use --speculative-config.num_speculative_tokens",
}
_FIRST_GONE = {flag: since for (since, _), flags in _GONE.items() for flag in flags.split()}
_LAST_WITH = {flag: last for (_, last), flags in _GONE.items() for flag in flags.split()}
_FIRST_WITH = {flag: since for since, flags in _CAME.items() for flag in flags.split()}


def refused_by(flag: str, version: str) -> Change | None:
    """Why vLLM `version` ("" is the newest known) does not take `flag` of the table; None where it does."""
    asked = numbers_of(version)
    gone, came = _FIRST_GONE.get(flag), _FIRST_WITH.get(flag)
    if gone is not None and asked >= gone:
        return Change(flag, True, _said(gone), _LAST_WITH[flag], _INSTEAD.get(flag, ""))
    if came is not None and asked < came:
        return Change(flag, False, _said(came), _said(came))
    return None


def unread(variable: str, value: str, version: str) -> bool:
    """Whether the variable, or this value of it, changes nothing in vLLM `version`."""
    asked = numbers_of(version)
    if variable == "VLLM_USE_V1" and value.strip() == "1" and asked >= _V1_BY_DEFAULT:
        return True
    return variable in _VARIABLE_GONE and asked >= _VARIABLE_GONE[variable]


def _said(version: Version) -> str:
    return ".".join(map(str, version if version[2] else version[:2]))
