"""Decides what of a plan people should know or act on, beside the engine's own refusals."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvbudget.engines.flags import Settings
from kvbudget.engines.rule import Pool, Stage
from kvbudget.model.read import Model
from kvbudget.planner.curve import usable_of, whole_requests
from kvbudget.planner.request import Ceilings, Finding, Memory, PlanRequest, class_default_length
from kvbudget.pool.groups import Layout
from kvbudget.units import GIB, format_size

if TYPE_CHECKING:
    from kvbudget.planner.hardware.estimates import Interval

_ANY_NUMBER = 10**15
_LENGTH_FLAGS = {"sglang": " (--context-length)", "trtllm": " (--max_seq_len)"}
_HARDLY_LESS = 0.75  # a request of half the length that still holds more than this share of a whole one


def findings_on(
    request: PlanRequest,
    engine_name: str,
    settings: Settings,
    memory: Memory,
    layout: Layout,
    pool: Pool,
    ceilings: Ceilings,
) -> list[Finding]:
    """Hardware, wishes, names and defaults, in this order."""
    return [
        *_hardware_findings(request, engine_name, settings, memory, pool),
        *_cut_findings(engine_name, settings, pool),
        *_batch_findings(request, engine_name, settings, layout),
        *_target_findings(request, engine_name, settings, layout, pool, ceilings),
        *_name_findings(request, memory),
        *_draft_findings(request, settings),
        *_model_findings(request, engine_name, pool.max_model_len),
    ]


def _draft_findings(request: PlanRequest, settings: Settings) -> list[Finding]:
    """A draft of which nothing tells the weights: the plan has none for it."""
    asked = settings.speculation
    if asked is None or request.kv_cache_memory is not None:
        return []
    unknown = asked.draft is not None and asked.draft.parameters is None and request.draft_weights is None
    if not unknown and asked.method != "custom_class":
        return []
    what = f"the class {asked.model[-60:]}" if asked.draft is None else f"the draft {asked.draft.name[-60:]}"
    return [
        Finding(
            "draft_uncounted",
            "warning",
            f"nothing tells what {what} keeps in the card's memory: the plan counts nothing for it",
            "give --overhead with room for it, or compare with a start-up log: kvbudget receipt",
        )
    ]


def headroom_findings(memory: Memory, graphs: "Interval") -> list[Finding]:
    """`graphs`: what this release captures beside its share, when the pool has taken all of the share."""
    outside = memory.total.bytes - memory.usable.bytes
    if outside >= graphs.best:
        return []
    return [
        Finding(
            "little_headroom",
            "warning",
            f"this version captures its CUDA graphs after it has sized the pool, beside its share of the card: about "
            f"{graphs.best / GIB:.2f} GiB ({graphs.low / GIB:.2f} to {graphs.high / GIB:.2f}), and "
            f"{outside / GIB:.2f} GiB are left: it may run out of memory at start",
            f"use --gpu-memory-utilization {_share_below(memory, graphs.high):g}, or --enforce-eager",
        )
    ]


def _share_below(memory: Memory, kept: int) -> float:
    """The largest share in hundredths that leaves `kept` bytes of the card."""
    return max(1, 100 * (memory.total.bytes - kept) // memory.total.bytes) / 100


def _hardware_findings(
    request: PlanRequest, engine_name: str, settings: Settings, memory: Memory, pool: Pool
) -> list[Finding]:
    found = []
    each = settings.tensor_parallel_size * settings.pipeline_parallel_size
    ranks = each * request.flags.data_parallel_size
    if request.gpu is not None and request.gpu.mig_profile and each > 1:
        found.append(
            Finding(
                "mig_slices_joined",
                "error",
                f"{each} ranks on MIG slices ({request.gpu.name}): a process sees one slice only, and slices have no "
                "way to each other: they cannot be one engine (NVIDIA MIG User Guide: no peer-to-peer between "
                "instances)",
                "take a larger slice or a whole card, with one rank; or one engine on each slice, as replicas",
            )
        )
    if request.gpus is not None and ranks > request.gpus:
        found.append(
            Finding(
                "too_few_gpus",
                "error",
                f"World size ({ranks}) is larger than the number of available GPUs ({request.gpus}).",
                "lower --tensor-parallel-size x --pipeline-parallel-size x --data-parallel-size, or add GPUs",
            )
        )
    elif request.gpus is not None and ranks < request.gpus:
        found.append(
            Finding(
                "gpus_idle",
                "warning",
                f"{ranks} of {request.gpus} GPUs are used",
                _idle_fix(request, engine_name, settings, memory, pool),
            )
        )
    given = request.kv_cache_memory
    if given is not None and memory.total.bytes and given + memory.weights.bytes > memory.total.bytes:
        found.append(
            Finding(
                "pool_beyond_memory",
                "error",
                f"KV cache {format_size(given)} and weights {format_size(memory.weights.bytes)} exceed the card's "
                f"{memory.total.bytes / GIB:.2f} GiB",
                "lower --kv-cache-memory-bytes",
            )
        )
    return found


def machine_findings(model: Model, stages: Sequence[Stage]) -> list[Finding]:
    """llama.cpp: what no card holds."""
    if any(stage.held is None for stage in stages):
        return []
    layers = len(model.layers)
    there = layers - sum(stage.held.end - stage.held.first for stage in stages if stage.held is not None)
    if not there and all(stage.on_card for stage in stages):
        return []
    if not there:
        return [
            Finding(
                "layers_off_the_cards",
                "warning",
                "the cache lies in the machine's memory (--no-kv-offload): only the weights are planned",
                "see that the machine has enough free memory",
            )
        ]
    return [
        Finding(
            "layers_off_the_cards",
            "warning",
            f"{there} of {layers} layers and their cache lie in the machine's memory, and run on its processor: only "
            "the cards are planned",
            "raise --n-gpu-layers where the cards have room, and see that the machine has enough free memory",
        )
    ]


def _idle_fix(request: PlanRequest, engine_name: str, settings: Settings, memory: Memory, pool: Pool) -> str:
    """What would use all cards: ranks of one engine where one alone lacks room, else engines beside one another too."""
    cards, stages = request.gpus or 1, settings.pipeline_parallel_size
    alone = memory.kv.bytes > 0 and pool.blocks_per_request <= pool.checked_blocks
    if request.gpu is not None and request.gpu.mig_profile:
        return "start one engine on each slice, as replicas: slices cannot be joined" if alone else "take larger slices"
    if engine_name == "llamacpp":
        split = ", without --tensor-split" if request.flags.tensor_split else ""
        return (
            f"--pipeline-parallel-size {cards}{split}: all cards hold layers, and the cache of theirs (llama-server "
            "without --device or --split-mode none)"
        )
    heads, widest = request.model.attention_heads, settings.tensor_parallel_size
    while 2 * widest * stages <= cards and heads % (2 * widest) == 0:
        widest *= 2
    wider = f"--tensor-parallel-size {widest}" if widest > settings.tensor_parallel_size else "more ranks"
    if not alone:
        return (
            f"raise the ranks of one engine ({wider}): its weights are split over them; engines beside one another "
            "would each lack the same room"
        )
    engines = cards // (settings.tensor_parallel_size * stages)
    beside = f"--data-parallel-size {engines}" if engine_name != "tgi" else f"{engines} servers"
    return f"{wider}: one engine with more room for its cache; or {beside}: engines whose ceilings add"


def _cut_findings(engine_name: str, settings: Settings, pool: Pool) -> list[Finding]:
    """Engines that start with a pool smaller than max_model_len, and serve what it holds."""
    if settings.auto_length or not 0 < pool.max_model_len < settings.max_model_len or pool.num_blocks <= 0:
        return []
    flag = _LENGTH_FLAGS.get(engine_name, "")
    room = "make room: an 8-bit KV cache, quantised weights, more cards"
    if _is_capped(settings, pool):
        room = f"leave --max-total-tokens {settings.max_pool_tokens} out, which caps the pool"
    return [
        Finding(
            "pool_below_max_model_len",
            "warning",
            f"the pool holds {pool.tokens:,} tokens, not the {settings.max_model_len:,} of max_model_len: it starts, "
            f"but refuses prompts that reach {pool.max_model_len:,} tokens, and ends answers there",
            f"use --max-model-len {pool.max_model_len}{flag} to say so, or {room}",
        )
    ]


def _is_capped(settings: Settings, pool: Pool) -> bool:
    """SGLang: whether a flag ends the pool, and not the memory."""
    most = settings.max_pool_tokens
    return most > 0 and pool.tokens == most // settings.block_size * settings.block_size


def _batch_findings(request: PlanRequest, engine_name: str, settings: Settings, layout: Layout) -> list[Finding]:
    """vLLM's batch follows the card, and what is bounded (windows, chunks) holds all of a batch in flight."""
    unknown = request.gpu is None and request.gpu_memory is None and request.flags.max_num_batched_tokens is None
    if engine_name != "vllm" or not unknown or not any(group.most_tokens for group in layout.groups):
        return []
    return [
        Finding(
            "batch_default_assumed",
            "warning",
            f"no card is given, so --max-num-batched-tokens is {settings.max_num_batched_tokens:,}, as on cards below "
            "70 GiB; larger ones take up to 16,384, and windows hold what is in flight: a request then needs more "
            "blocks",
            "give --gpu, or the --max-num-batched-tokens that the engine runs with",
        )
    ]


def _name_findings(request: PlanRequest, memory: Memory) -> list[Finding]:
    """Weights that may be others: files that do not match config.json, or a name that says more than it."""
    given = request.weights
    if given is not None and given.doubt:
        return [
            Finding(
                "weights_doubtful",
                "warning",
                f"the weight files have {format_size(given.bytes)}, {given.doubt}",
                "finish the download, put the model's own config.json beside them, or give --weights SIZE",
            )
        ]
    word = request.model.named_quantisation
    if not word or memory.weights.source != "computed":
        return []
    return [
        Finding(
            "quantisation_only_in_name",
            "warning",
            f"the name says {word}, config.json names no quantisation: the weights are computed unquantised "
            f"({format_size(memory.weights.bytes)}), and the KV cache by --kv-cache-dtype alone",
            "put the checkpoint's hf_quant_config.json (or its whole config.json) into the folder, or give --weights "
            "SIZE; and --kv-cache-dtype where the checkpoint prescribes one",
        )
    ]


# Sizes that decide the cache. Where config.json leaves one out, the config class's default is planned with.
_DECIDING = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
# KDA kernels that keep a state at a prefill checkpoint (vLLM 0.32, FlashKDA on compute capability 9.0 and 10.x)
_CHECKPOINTING = ("kimi_k3", "glm5_next")


def _model_findings(request: PlanRequest, engine_name: str, length: int) -> list[Finding]:
    """What of the model the plan does not know for certain."""
    model = request.model
    missing = [name for name in _DECIDING if name in model.filled]
    found = []
    if "num_hidden_layers" in missing or "hidden_size" in missing:
        found.append(
            Finding(
                "class_defaults_decide",
                "warning",
                f"config.json does not say {', '.join(missing)}: the defaults of {model.model_type}'s config class are "
                "planned with",
                "give the model's own config.json, whole",
            )
        )
    default = class_default_length(model)
    if default is not None and length > default:
        found.append(
            Finding(
                "longer_than_class_default",
                "warning",
                f"max_model_len {length:,} is beyond {default:,}, which the config class of {model.model_type} has for "
                "a config.json without max_position_embeddings: an engine may refuse it",
                f"use --max-model-len {default}, or give the model's own config.json, whole",
            )
        )
    if engine_name == "vllm" and model.model_type.startswith(_CHECKPOINTING):
        found.append(
            Finding(
                "state_checkpoint_possible",
                "warning",
                "with the FlashKDA prefill kernel vLLM may keep one block more per state group and request; the plan "
                "counts none",
                "compare with the engine's start-up log: kvbudget receipt",
            )
        )
    return found


def _target_findings(
    request: PlanRequest, engine_name: str, settings: Settings, layout: Layout, pool: Pool, ceilings: Ceilings
) -> list[Finding]:
    """The target is one of requests of p95 length where lengths are known, else of the longest ones."""
    target, engines = request.target_concurrency, request.flags.data_parallel_size
    held = ceilings.p95 * engines
    if target is None or target <= held:
        return []
    length = ceilings.lengths[1]
    usable = usable_of(pool, ceilings)
    now = whole_requests(layout, usable, settings.max_num_seqs, length, pool.most_requests)
    where = f" on {engines} engines" if engines > 1 else ""
    wanted = -(-target // engines)
    more = _more_from_pool(engine_name, settings, layout, length, now.limited_by)
    if _is_capped(settings, pool) and now.limited_by == "pool":
        more = f"leave --max-total-tokens {settings.max_pool_tokens} out, or raise it: it caps the pool"
    if engine_name == "llamacpp":
        from kvbudget.planner.room import more_slots

        more = "" if request.trial else more_slots(request, settings, wanted, length)
    elif now.limited_by == "max_num_seqs":
        by_pool = whole_requests(layout, usable, _ANY_NUMBER, length, pool.most_requests).requests
        if by_pool >= wanted:
            more = f"raise --max-num-seqs to {wanted}: the pool would hold {by_pool:,} such requests"
        else:
            more = f"raise --max-num-seqs to {wanted}; the pool would still hold only {by_pool:,}: {more} as well"
    return [
        Finding(
            "below_target_concurrency",
            "error",
            f"{held} {'request' if held == 1 else 'requests'} of "
            f"{f'p95 length ({length:,} tokens)' if request.knows_lengths else 'full length'} at once{where}, "
            f"wanted: {target} (limited by {now.limited_by})",
            more,
        )
    ]


def _more_from_pool(engine_name: str, settings: Settings, layout: Layout, length: int, limited_by: str) -> str:
    """What makes room: of no use is a shorter length where a request would hold almost as much."""
    if limited_by == "state":
        smaller = "keep states in fewer bits (--mamba-ssm-cache-dtype), " if engine_name == "vllm" else ""
        return (
            "most of what a request holds is constant (states, slots), so a shorter --max-model-len hardly helps: "
            f"{smaller}give the cache more memory, or add GPUs"
        )
    eight_bit = "use an fp8 KV cache, " if settings.kv_element_bytes > 1 else ""
    if layout.blocks_for(max(1, length // 2)) > _HARDLY_LESS * layout.blocks_for(length):
        return (
            "lower --max-num-batched-tokens (most of what a request holds are windows and what is in flight, so a "
            f"shorter --max-model-len hardly helps), {eight_bit}or add GPUs"
        )
    return f"shorten --max-model-len, {eight_bit}or add GPUs"
