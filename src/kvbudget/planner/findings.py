"""Decides what of a plan people should know or act on, beside the engine's own refusals."""

from kvbudget.engines.flags import Settings
from kvbudget.planner.request import Ceilings, Finding, Memory, PlanRequest
from kvbudget.units import GIB, format_size


def findings_on(
    request: PlanRequest, engine_name: str, settings: Settings, memory: Memory, ceilings: Ceilings
) -> list[Finding]:
    """Hardware, wishes, names and defaults, in this order."""
    return [
        *_hardware_findings(request, settings, memory),
        *_target_findings(request, ceilings),
        *_name_findings(request, memory),
        *_model_findings(request, engine_name),
    ]


def _hardware_findings(request: PlanRequest, settings: Settings, memory: Memory) -> list[Finding]:
    found = []
    ranks = settings.tensor_parallel_size * settings.pipeline_parallel_size * request.flags.data_parallel_size
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
                "raise --tensor-parallel-size, or --data-parallel-size: engines beside one another, whose ceilings add",
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


def _name_findings(request: PlanRequest, memory: Memory) -> list[Finding]:
    """A checkpoint that calls itself quantised, with a config.json that does not say so, is several times smaller."""
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


def _model_findings(request: PlanRequest, engine_name: str) -> list[Finding]:
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


def _target_findings(request: PlanRequest, ceilings: Ceilings) -> list[Finding]:
    target, engines = request.target_concurrency, request.flags.data_parallel_size
    held = ceilings.ceiling * engines
    if target is None or target <= held:
        return []
    where = f" on {engines} engines" if engines > 1 else ""
    return [
        Finding(
            "below_target_concurrency",
            "error",
            f"{held} {'request' if held == 1 else 'requests'} of full length at once{where}, "
            f"wanted: {target} (limited by {ceilings.limited_by})",
            "shorten --max-model-len, use an fp8 KV cache, or add GPUs",
        )
    ]
