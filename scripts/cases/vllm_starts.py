# ruff: noqa: D103  (the reports are told apart by their ids; what each says is in their file)
"""Reports about vLLM that are about starting: refusals, and the memory beside the pool."""

from collections.abc import Callable

from cases.replay import (
    Case,
    Check,
    Outcome,
    holds,
    model_of,
    near,
    plan_of,
    printed,
    same,
    version_of,
    weights,
)

from kvbudget.engines.registry import engine_named
from kvbudget.engines.rule import Refusal
from kvbudget.errors import InputError
from kvbudget.model.read import model_from_config
from kvbudget.units import GIB, Bytes


def p11(case: Case) -> Outcome:
    seen, model = case["observed"], model_of(case)
    refused, alone = [], []
    for memory in printed(seen["avail_gib"]):
        plan = plan_of(case, model, memory, pp_layer_partition=(16, 32))
        rule = engine_named(f"vllm@{version_of(case)}")
        stages = rule.stages(model, plan.settings)
        pool = rule.pool(model, plan.settings, stages, [memory, 20 * GIB])  # the other card is the larger one
        refused.append(_message(rule.refusals(model, plan.settings, stages, pool), "pipeline_start_check"))
        alone.append(stages[0].layout.largest_length(pool.num_blocks))
    longest = [int(message.partition("model length is ")[2].partition(".")[0]) for message in refused]
    checks = (
        Check("longest, all layers", longest[0], longest[1], seen["est_max_len"]),
        Check("longest, the 16 layers of that card", alone[0], alone[1], 104_200),
        holds("24.0 GiB needed", all("24.0 GiB" in message for message in refused)),
    )
    return Outcome(checks)


def p70g(case: Case) -> Outcome:
    seen, model = case["observed"], model_of(case, vocab_size=128256, intermediate_size=14336)
    checks = []
    for ranks in ("1", "2", "4"):
        plan = plan_of(case, model, gpu_memory=Bytes(int(79.19 * GIB)), tensor_parallel_size=int(ranks))
        checks.append(near(f"weights at TP {ranks}", plan.memory.weights.bytes / GIB, seen["tp"][ranks]["w"], 0.04))
    for stages in ("2", "4"):
        plan = plan_of(case, model, gpu_memory=Bytes(int(79.19 * GIB)), pipeline_parallel_size=int(stages))
        checks.append(near(f"weights at PP {stages}", plan.memory.weights.bytes / GIB, seen["pp"][stages]["w"], 0.04))
    return Outcome(tuple(checks), "weights from the config alone; allocator granularity adds 0.03 GiB")


def p70j(case: Case) -> Outcome:
    given = {"gpu_memory": Bytes(int(79.19 * GIB)), "max_model_len": 8192}
    given |= {"activation": Bytes(2 * GIB), "overhead": Bytes(GIB), "weights": weights(13.0)}
    tight, roomy = (
        plan_of(case, model_of(case), gpu_memory_utilization=share, **given).memory for share in (0.95, 0.9)
    )
    left = [(memory.total.bytes - memory.usable.bytes) / GIB for memory in (tight, roomy)]
    return Outcome(
        (holds("0.95 leaves 4 GiB of the card, 0.90 twice that", left[0] < 4 < left[1] < 8.1),),
        "graphs, sampler warm-up and other processes must do with what the utilisation leaves: no pool shows that",
    )


def p70k(case: Case) -> Outcome:
    qwen = {
        "model_type": "qwen3", "num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads": 40,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 17408, "vocab_size": 151936,
        "max_position_embeddings": 40960,
    }  # fmt: skip
    phi = {
        "model_type": "phi", "num_hidden_layers": 32, "hidden_size": 2560, "num_attention_heads": 32,
        "intermediate_size": 10240, "vocab_size": 51200, "max_position_embeddings": 2048,
    }  # fmt: skip
    return Outcome(
        (
            holds("TP 5 refused", _refused(case, qwen, tensor_parallel_size=5)),
            holds("8,192 of 2,048 positions refused", _refused(case, phi, max_model_len=8192)),
        )
    )


def p70l(case: Case) -> Outcome:
    seen, model = case["observed"], model_of(case)
    total, one = Bytes(int(case["hardware"]["total_gib"] * GIB)), seen["tp1_weights_gib"]
    taken = {"activation": Bytes(int(4.84 * GIB)), "overhead": Bytes(int(0.13 * GIB)), "weights": weights(one)}
    alone = plan_of(case, model, gpu_memory=total, **taken)
    low, high = (plan_of(case, model, memory, tensor_parallel_size=2) for memory in printed(seen["tp2"]["kv"]))
    return Outcome(
        (
            near("GiB left on one GPU", alone.memory.kv.bytes / GIB, seen["tp1_kv_gib"], 0.05),
            holds("refused on one GPU", any(finding.code == "no_kv_memory" for finding in alone.findings)),
            Check("tokens on two", low.pool.tokens, high.pool.tokens, 209_715),
        )
    )


def p82(case: Case) -> Outcome:
    seen, model = case["observed"], model_of(case)
    plan = plan_of(
        case, model, gpu_memory=Bytes(int(seen["total_gib"] * GIB)), weights=weights(seen["weights_gib"]),
        activation=Bytes(int(seen["activation_gib"] * GIB)), overhead=Bytes(int(seen["non_torch_gib"] * GIB)),
    )  # fmt: skip
    swap = plan_of(case, model, 4 * GIB)  # its CPU pool is 4 GiB of the same blocks
    return Outcome(
        (
            same("GiB left", plan.memory.kv.bytes / GIB, seen["kv_gib"], 2),
            same("blocks", plan.pool.num_blocks, seen["gpu_blocks"]),
            same("blocks of 4 GiB", swap.pool.num_blocks, seen["cpu_blocks"]),
            holds("refused", any(finding.code == "no_kv_memory" for finding in plan.findings)),
        )
    )


def _message(refusals: list[Refusal], code: str) -> str:
    return next((refusal.message for refusal in refusals if refusal.code == code), "model length is 0.")


def _refused(case: Case, config: dict[str, object], **given: int) -> bool:
    try:
        return not plan_of(case, model_from_config(config, "m"), 40 * GIB, **({"max_model_len": 2048} | given)).fits
    except InputError:
        return True


REPLAYS: dict[str, Callable[[Case], Outcome]] = {
    "P11": p11, "P70g": p70g, "P70j": p70j, "P70k": p70k, "P70l": p70l, "P82": p82,
}  # fmt: skip
