"""Decides what each option of `text-generation-launcher` (TGI 3) means for the KV budget (`launcher/src/main.rs`).

Every option has an environment variable of its own name; the option wins.
"""

from kvbudget.engines.commands.command import Note
from kvbudget.engines.commands.options import MANY, ONE, SWITCH, Syntax, options
from kvbudget.engines.commands.values import fraction, positive, text, whole

NAME = "tgi"
DEFAULT_MODEL = "bigscience/bloom-560m"
SYNTAX = Syntax(equals=True)

_FIELDS = {
    "--model-id": (ONE, "model", text),
    "--revision": (ONE, "revision", text),
    "--quantize": (ONE, "quantization", text),
    "--num-shard": (ONE, "tensor_parallel_size", positive),
    "--sharded": (ONE, "sharded", text),
    "--dtype": (ONE, "dtype", text),
    "--kv-cache-dtype": (ONE, "kv_cache_dtype", text),
    "--max-total-tokens": (ONE, "max_model_len", positive),
    "--max-batch-prefill-tokens": (ONE, "max_num_batched_tokens", positive),
    "--max-batch-size": (ONE, "max_num_seqs", positive),
    "--cuda-memory-fraction": (ONE, "gpu_memory_utilization", fraction),
    "--speculate": (ONE, "speculate", whole),
    "--cuda-graphs": (ONE, "cuda_graphs", text),
}
_UNMODELLED = (
    (ONE, "--max-batch-total-tokens", "sets the pool, in tokens"),
    (ONE, "--max-concurrent-requests", "limits running and waiting requests together"),
    (ONE, "--max-input-tokens --max-input-length", "limits the prompt within max_total_tokens"),
    (ONE, "--rope-scaling", "changes the model's own length"),
    (ONE, "--rope-factor", "changes the model's own length"),
    (ONE, "--lora-adapters", "LoRA adapters take memory beside the weights"),
    (SWITCH, "--enable-prefill-logprobs", "takes memory for the prompt's logits"),
    (SWITCH, "--disable-custom-kernels", "switches paged attention off for some models"),
)
_NO_EFFECT = {
    SWITCH: "--trust-remote-code --json-output --ngrok --disable-grammar-support --env/-e",
    MANY: "--cors-allow-origin",
    ONE: """--validation-workers --max-best-of --max-stop-sequences --max-top-n-tokens --waiting-served-ratio
        --max-waiting-tokens --hostname --port/-p --prometheus-port --shard-uds-path --master-addr --master-port
        --huggingface-hub-cache --weights-cache-override --otlp-endpoint --otlp-service-name --api-key
        --watermark-gamma --watermark-delta --ngrok-authtoken --ngrok-edge --tokenizer-config-path
        --max-client-batch-size --usage-stats --payload-limit --graceful-termination-timeout""",
}
TABLE = options(_FIELDS, _UNMODELLED, _NO_EFFECT)
# MAX_TOTAL_TOKENS for --max-total-tokens, and so on; only those that matter are read
FROM_ENVIRONMENT = {
    name[2:].upper().replace("-", "_"): name
    for name, option in TABLE.items()
    if name.startswith("--") and (option.effect or option.why)
}
VARIABLES = {
    "ATTENTION": "chooses the block size: 1 flashinfer, 16 paged, 256 flashdecoding",
    "PREFIX_CACHING": "switches prefix caching",
    "USE_PREFIX_CACHING": "switches prefix caching",
    "TGI_WIGGLE_ROOM": "keeps a share of the free memory back",
}


def settle(values: dict[str, object], _notes: list[Note]) -> None:
    """`--sharded false` takes --num-shard back, `--cuda-graphs 0` switches graphs off, --speculate drafts n-grams."""
    if str(values.pop("sharded", "")).lower() == "false":
        values["tensor_parallel_size"] = 1
    if str(values.pop("cuda_graphs", "")).strip() == "0":
        values["enforce_eager"] = True
    tokens = values.pop("speculate", 0)
    if tokens:
        values["speculative_config"] = {"method": "ngram", "num_speculative_tokens": tokens}
