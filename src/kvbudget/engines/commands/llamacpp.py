"""Decides what each option of llama-server and llama-cli means for the KV budget (llama.cpp, `common/arg.cpp`).

`--ctx-size` is the context of all slots together; how the slots share it is the engine rule's matter. Most options have
an environment variable LLAMA_ARG_*; the option wins.
"""

from kvbudget.engines.commands.command import Note
from kvbudget.engines.commands.options import ONE, OPTIONAL, SWITCH, Syntax, options
from kvbudget.engines.commands.values import opposite, positive_or_default, text, whole, yes_or_no
from kvbudget.errors import BadValueError

NAME = "llamacpp"
SYNTAX = Syntax(equals=False)

# llama.cpp counts "all" as one more than there are; beyond any model's number of layers
_ALL_LAYERS = 9999
_MOST_CARDS = 128  # ggml/include/ggml-cuda.h has 16; RPC servers count as well
_LARGEST_SHARE = 1e9
_SPLIT_MODES = ("none", "layer", "row", "tensor")


def _layers(flag: str, value: str) -> int | None:
    """None for auto (-1), which fits as many as memory allows."""
    word = value.strip().lower()
    if word in ("auto", "-1"):
        return None
    return _ALL_LAYERS if word in ("all", "-2") else whole(flag, word)


def _attention(flag: str, value: str) -> bool | None:
    """False where it is off; on and auto plan the same."""
    word = value.strip().lower()
    return None if word in ("", "auto", "enabled") or yes_or_no(flag, word) else False


def shares_of(flag: str, value: str) -> tuple[float, ...]:
    """`3,1` or `3/1`: how much each card takes of the layers, in any unit."""
    parts = [part.strip() for part in value.replace("/", ",").split(",")]
    try:
        shares = tuple(float(part) for part in parts)
    except ValueError:
        shares = ()
    if not shares or len(shares) > _MOST_CARDS or not all(0 <= share < _LARGEST_SHARE for share in shares):
        raise BadValueError(f"{flag}: {value[:40]!r} are no shares of cards", fix="one number for each card: 3,1")
    return shares


_FIELDS = {
    "--model -m": (ONE, "model", text),
    "--hf-repo -hf -hfr": (ONE, "repository", text),
    "--hf-file -hff": (ONE, "repository_file", text),
    "--model-url -mu": (ONE, "model", text),
    "--docker-repo -dr": (ONE, "model", text),
    "--ctx-size -c": (ONE, "max_model_len", positive_or_default),
    "--parallel -np": (ONE, "max_num_seqs", positive_or_default),
    "--batch-size -b": (ONE, "max_num_batched_tokens", positive_or_default),
    "--ubatch-size -ub": (ONE, "micro_batch", positive_or_default),
    "--gpu-layers --n-gpu-layers -ngl": (ONE, "gpu_layers", _layers),
    "--cache-type-k -ctk": (ONE, "kv_cache_dtype", text),
    "--cache-type-v -ctv": (ONE, "value_cache_dtype", text),
    "--kv-unified -kvu": (SWITCH, "kv_unified", yes_or_no),
    "--no-kv-unified -no-kvu": (SWITCH, "kv_unified", opposite),
    "--swa-full": (SWITCH, "swa_full", yes_or_no),
    "--kv-offload -kvo": (SWITCH, "kv_offload", yes_or_no),
    "--no-kv-offload -nkvo": (SWITCH, "kv_offload", opposite),
    "--flash-attn -fa": (OPTIONAL, "flash_attention", _attention),
    "--fit -fit": (OPTIONAL, "fit_context", yes_or_no),
    "--cache-prompt": (SWITCH, "enable_prefix_caching", yes_or_no),
    "--no-cache-prompt": (SWITCH, "enable_prefix_caching", opposite),
    "--spec-type": (ONE, "spec.type", text),
    "--spec-draft-model --model-draft -md": (ONE, "spec.model", text),
    "--spec-draft-hf --hf-repo-draft -hfd -hfrd": (ONE, "spec.model", text),
    "--spec-draft-n-max --draft-max --draft --draft-n": (ONE, "spec.num_speculative_tokens", whole),
    "--tensor-split -ts": (ONE, "tensor_split", shares_of),
    "--split-mode -sm": (ONE, "split_mode", text),
    "--device -dev": (ONE, "devices", text),
}
_CPU = "weights outside of the GPU leave more for the cache"
_CONTEXT = "changes the model's own length"
_DRAFT = "changes the draft's cache"
_PROJECTOR = "the image projector takes memory"
_UNMODELLED = (
    (ONE, "--fit-target -fitt", "keeps memory free while fitting"),
    (ONE, "--fit-ctx -fitc", "the least context while fitting"),
    (ONE, "--kv-unified-per-slot", "limits the context of a slot"),
    (ONE, "--override-kv", "changes the model's own figures"),
    (ONE, "--override-tensor -ot", _CPU),
    (SWITCH, "--cpu-moe -cmoe", _CPU),
    (ONE, "--n-cpu-moe -ncmoe", _CPU),
    (ONE, "--n-cpu-ffn -ncffn", _CPU),
    (ONE, "--moe-cache-mib", "a cache of experts on the GPU"),
    (ONE, "--rpc", "layers on other machines"),
    (ONE, "--main-gpu -mg", "one card holds more than the others"),
    (ONE, "--rope-scaling", _CONTEXT),
    (ONE, "--rope-scale", _CONTEXT),
    (ONE, "--yarn-orig-ctx", _CONTEXT),
    (ONE, "--grp-attn-n -gan", _CONTEXT),
    (ONE, "--lora", "LoRA adapters take memory beside the weights"),
    (ONE, "--lora-scaled", "LoRA adapters take memory beside the weights"),
    (ONE, "--mmproj -mm", _PROJECTOR),
    (ONE, "--mmproj-url -mmu", _PROJECTOR),
    (ONE, "--spec-draft-type-k --cache-type-k-draft -ctkd", _DRAFT),
    (ONE, "--spec-draft-type-v --cache-type-v-draft -ctvd", _DRAFT),
    (ONE, "--ctx-size-draft -cd", _DRAFT),
    (ONE, "--spec-draft-ngl --gpu-layers-draft --n-gpu-layers-draft -ngld", _DRAFT),
    (ONE, "--ctx-checkpoints --swa-checkpoints -ctxcp", "keeps copies of windows in the machine's memory"),
    (ONE, "--cache-ram -cram", "keeps prompts in the machine's memory"),
    (SWITCH, "--embedding --embeddings", "embedding models keep no cache between steps"),
    (SWITCH, "--rerank --reranking", "embedding models keep no cache between steps"),
    (ONE, "--models-dir", "a router loads several models"),
    (ONE, "--models-preset", "a router loads several models"),
    (ONE, "--models-max", "a router loads several models"),
)
_NO_EFFECT = {
    SWITCH: """--version --cache-list/-cl --completion-bash --help/-h/--usage --perf --no-perf
        --escape/-e --no-escape --repack --no-repack/-nr --no-host --list-devices --check-tensors --op-offload
        --no-op-offload --log-disable --log-jsonl --no-log-jsonl --verbose/-v/--log-verbose --offline --log-prefix
        --no-log-prefix --log-timestamps --no-log-timestamps --ignore-eos --backend-sampling/-bs --cache-idle-slots
        --no-cache-idle-slots --context-shift --no-context-shift --special/-sp --warmup --no-warmup --spm-infill
        --cont-batching/-cb --no-cont-batching/-nocb --mmproj-auto --no-mmproj --no-mmproj-auto --mmproj-offload
        --no-mmproj-offload --reuse-port --cors-credentials --no-cors-credentials --ui-mcp-proxy --no-ui-mcp-proxy
        --webui-mcp-proxy --no-webui-mcp-proxy --agent/-ag --no-agent/-no-ag --ui --webui --no-ui --no-webui --metrics
        --props --slots --no-slots --models-autoload --no-models-autoload --jinja --no-jinja --reasoning-preserve
        --no-reasoning-preserve --skip-chat-parsing --no-skip-chat-parsing --prefill-assistant
        --no-prefill-assistant --lora-init-without-apply --mlock --no-mmap --mmap --direct-io/-dio --no-direct-io/-ndio
        --spec-draft-backend-sampling --no-spec-draft-backend-sampling --spec-draft-cpu-moe/--cpu-moe-draft/-cmoed
        --spec-default --color/-co --conversation/-cnv --no-conversation/-no-cnv --single-turn/-st --interactive/-i
        --interactive-first/-if --multiline-input/-mli --simple-io --no-display-prompt --in-prefix-bos
        --prompt-cache-all --prompt-cache-ro --endpoint-slots --no-kv-unified-warning""",
    OPTIONAL: "--log-colors --reasoning/-rea --simple-ui",
    ONE: """--threads/-t --threads-batch/-tb --cpu-mask/-C --cpu-range/-Cr --cpu-strict --prio --poll
        --cpu-mask-batch/-Cb --cpu-range-batch/-Crb --cpu-strict-batch --prio-batch --poll-batch
        --predict/--n-predict/-n --keep --rope-freq-base --rope-freq-scale --yarn-ext-factor
        --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast --defrag-thold/-dt --load-mode/-lm
        --lazy-mode/-lzm --numa --control-vector --control-vector-scaled --control-vector-layer-range
        --hf-token/-hft --log-file --verbosity/--log-verbosity/-lv --samplers --seed/-s
        --sampler-seq/--sampling-seq --temp/--temperature --top-k --top-p --min-p --top-nsigma/--top-n-sigma
        --xtc-probability --xtc-threshold --typical/--typical-p --repeat-last-n --repeat-penalty
        --presence-penalty --frequency-penalty --dry-multiplier --dry-base --dry-allowed-length
        --dry-penalty-last-n --dry-sequence-breaker --adaptive-target --adaptive-decay --dynatemp-range
        --dynatemp-exp --mirostat --mirostat-lr --mirostat-ent --logit-bias/-l --grammar --grammar-file
        --json-schema/-j --json-schema-file/-jf --lookup-cache-static/-lcs --lookup-cache-dynamic/-lcd
        --checkpoint-min-step/-cms --reverse-prompt/-r --pooling --mmproj-device/-mmdev --image-min-tokens
        --image-max-tokens --mtmd-batch-max-tokens --video-fps --video-timestamp-interval --video-ffmpeg-dir
        --alias/-a --tags --embd-normalize --host --port --path --cors-origins --cors-methods --cors-headers
        --api-prefix --ui-config/--webui-config --ui-config-file/--webui-config-file --tools --tools-runtime
        --mcp-servers-config --mcp-servers-json --api-key --api-key-file --ssl-key-file --ssl-cert-file
        --chat-template-kwargs --timeout/-to --sse-ping-interval --threads-http --cache-reuse
        --slot-save-path --media-path --reasoning-format --reasoning-effort --reasoning-budget
        --reasoning-budget-message --chat-template --chat-template-file --slot-prompt-similarity/-sps
        --sleep-idle-seconds --log-prompts-dir --spec-draft-threads/--threads-draft/-td
        --spec-draft-threads-batch/--threads-batch-draft/-tbd --spec-draft-cpu-mask/--cpu-mask-draft/-Cd
        --spec-draft-cpu-range/--cpu-range-draft/-Crd --spec-draft-cpu-strict/--cpu-strict-draft
        --spec-draft-prio/--prio-draft --spec-draft-poll/--poll-draft --spec-draft-override-tensor/-otd
        --spec-draft-n-cpu-moe/--n-cpu-moe-draft/-ncmoed --spec-draft-n-min/--draft-min/--draft-n-min
        --spec-synth-len --spec-synth-rates --spec-draft-p-split/--draft-p-split
        --spec-draft-p-min/--draft-p-min --spec-draft-sampling --spec-draft-device/--device-draft/-devd
        --spec-ngram-mod-n-min --spec-ngram-mod-n-max --spec-ngram-mod-n-match --spec-ngram-simple-size-n
        --spec-ngram-simple-size-m --spec-ngram-simple-min-hits --spec-ngram-map-k-size-n
        --spec-ngram-map-k-size-m --spec-ngram-map-k-min-hits --spec-ngram-map-k4v-size-n
        --spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-min-hits --prompt/-p --file/-f --system-prompt/-sys
        --prompt-cache --in-prefix --in-suffix --image --audio --grp-attn-w/-gaw --system-prompt-file/-sysf""",
}
TABLE = options(_FIELDS, _UNMODELLED, _NO_EFFECT)
FROM_ENVIRONMENT = {
    "LLAMA_ARG_MODEL": "--model",
    "LLAMA_ARG_MODEL_URL": "--model-url",
    "LLAMA_ARG_HF_REPO": "--hf-repo",
    "LLAMA_ARG_HF_FILE": "--hf-file",
    "LLAMA_ARG_CTX_SIZE": "--ctx-size",
    "LLAMA_ARG_N_PARALLEL": "--parallel",
    "LLAMA_ARG_BATCH": "--batch-size",
    "LLAMA_ARG_UBATCH": "--ubatch-size",
    "LLAMA_ARG_N_GPU_LAYERS": "--gpu-layers",
    "LLAMA_ARG_CACHE_TYPE_K": "--cache-type-k",
    "LLAMA_ARG_CACHE_TYPE_V": "--cache-type-v",
    "LLAMA_ARG_KV_UNIFIED": "--kv-unified",
    "LLAMA_ARG_SWA_FULL": "--swa-full",
    "LLAMA_ARG_CACHE_PROMPT": "--cache-prompt",
    "LLAMA_ARG_SPEC_TYPE": "--spec-type",
    "LLAMA_ARG_SPEC_DRAFT_MODEL": "--spec-draft-model",
    "LLAMA_ARG_SPEC_DRAFT_N_MAX": "--spec-draft-n-max",
    "LLAMA_ARG_TENSOR_SPLIT": "--tensor-split",
    "LLAMA_ARG_SPLIT_MODE": "--split-mode",
    "LLAMA_ARG_DEVICE": "--device",
    "LLAMA_ARG_FLASH_ATTN": "--flash-attn",
    "LLAMA_ARG_FIT": "--fit",
    "LLAMA_ARG_KV_OFFLOAD": "--kv-offload",
    "LLAMA_ARG_KV_UNIFIED_PER_SLOT": "--kv-unified-per-slot",
    "LLAMA_ARG_OVERRIDE_TENSOR": "--override-tensor",
    "LLAMA_ARG_CPU_MOE": "--cpu-moe",
    "LLAMA_ARG_N_CPU_MOE": "--n-cpu-moe",
    "LLAMA_ARG_MMPROJ": "--mmproj",
}
VARIABLES = {
    "GGML_CUDA_ENABLE_UNIFIED_MEMORY": "the cache may leave the GPU",
}


def settle(values: dict[str, object], notes: list[Note]) -> None:
    """The model's repository and its file, the cards that are named, and the speculation in vLLM's keys."""
    repository = str(values.pop("repository", ""))
    file = str(values.pop("repository_file", ""))
    if repository and "model" not in values:
        values["model"], _, quantization = repository.partition(":")
        if quantization:
            values["quantization"] = quantization
    if file:
        notes.append(Note(f"the model's file is {file[:80]}", f"give it as MODEL: kvbudget plan {file[:80]}"))
    _cards(values, notes)
    if values.get("flash_attention") is False:
        notes.append(Note("--flash-attn off: compute buffers grow, how much is not planned", "give --activation SIZE"))
    spec = {name[5:]: values.pop(name) for name in [name for name in values if name.startswith("spec.")]}
    kinds = [kind for kind in str(spec.pop("type", "")).split(",") if kind and kind != "none"]
    if kinds or "model" in spec:
        method = kinds[0].removeprefix("draft-") if kinds else "draft_model"
        method = "draft_model" if method == "simple" else "ngram" if method.startswith("ngram") else method
        values["speculative_config"] = {"method": method} | spec


def _cards(values: dict[str, object], notes: list[Note]) -> None:
    """How many cards hold layers, where the command says it; else all that there are do (src/llama.cpp: devices)."""
    split = values.pop("tensor_split", ())
    shares = [share for share in split if share] if isinstance(split, tuple) else []
    devices = [one.strip() for one in str(values.pop("devices", "")).split(",") if one.strip()]
    mode = str(values.pop("split_mode", "layer")).strip().lower()
    if mode not in _SPLIT_MODES:
        raise BadValueError(f"--split-mode {mode[:40]!r} is none of llama.cpp", fix=f"one of {', '.join(_SPLIT_MODES)}")
    if devices == ["none"]:
        values["gpus"] = values["gpu_layers"] = 0
        return
    if mode == "none":
        values["gpus"] = values["pipeline_parallel_size"] = 1
        return
    if devices:
        shares = shares[: len(devices)]
    if devices or shares:
        values["gpus"] = len(devices or shares)
        values["pipeline_parallel_size"] = len(shares or devices)
    if len(set(shares)) > 1:
        values["tensor_split"] = tuple(shares)
    if mode != "layer":
        notes.append(
            Note(
                f"--split-mode {mode}: matrices are split over the cards; each is planned with whole layers, which "
                "take as much",
                "compare with the engine's start-up log: kvbudget receipt",
            )
        )
