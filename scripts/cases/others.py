# ruff: noqa: D103  (the reports are told apart by their ids; what each says is in their file)
"""The reports about SGLang, TensorRT-LLM, TGI and llama.cpp, one function each."""

from collections.abc import Callable
from typing import Any

from cases.replay import Case, Check, Outcome, holds, model_of, plan_of, printed, same, weights

from kvbudget.model.read import Model, model_from_config
from kvbudget.planner.request import Plan
from kvbudget.units import GIB, MIB, Bytes

SMALL = 64 * GIB  # more than any llama.cpp context here needs


def p51(case: Case) -> Outcome:
    seen, model = case["observed"], model_of(case)
    free = {"weights": weights(0.0), "activation": Bytes(0), "overhead": Bytes(0), "block_size": 64}
    low, high = (
        plan_of(case, model, engine="trtllm@0.13", gpu_memory=Bytes(memory), gpu_memory_utilization=0.9, **free)
        for memory in printed(seen["available_gib"])
    )
    return Outcome((Check("blocks, rounded up", low.pool.num_blocks, high.pool.num_blocks, seen["primary_blocks"]),))


def _cells(case: Case, model: Model, cells: int, engine: str = "llamacpp", **given: Any) -> Plan:
    return plan_of(case, model, SMALL, engine=engine, max_model_len=cells, max_num_seqs=1, **given)


def p54(case: Case) -> Outcome:
    seen, model = case["observed"], model_of(case)
    whole = _cells(case, model, seen["cells"]).pool.bytes
    upper = _cells(case, model, seen["cells"], gpu_layers=20).pool.bytes
    return Outcome(
        (
            same("MiB", whole / MIB, seen["kv_mib"]),
            same("MiB of 20 layers on the GPU", _share(model, seen["cells"], case, 20) / MIB, seen["gpu_mib"]),
            holds("fewer layers on the GPU need less there", upper < whole),
        )
    )


def _share(model: Model, cells: int, case: Case, layers: int) -> int:
    """Bytes of so many of its layers."""
    return _cells(case, model._replace(layers=model.layers[:layers]), cells).pool.bytes


def p56(case: Case) -> Outcome:
    seen, model = case["observed"], model_of(case)
    plan = plan_of(
        case, model, SMALL, engine="llamacpp", max_model_len=seen["cells"], max_num_seqs=1, pipeline_parallel_size=2,
        pp_layer_partition=(12, 36),
    )  # fmt: skip
    return Outcome(
        (
            same("MiB", _cells(case, model, seen["cells"]).pool.bytes / MIB, seen["kv_mib"]),
            same("MiB of 12 layers", _share(model, seen["cells"], case, 12) / MIB, seen["gpu0_mib"]),
            same("MiB on the fuller card", plan.pool.bytes / MIB, seen["gpu1_mib"]),
        )
    )


def p57(case: Case) -> Outcome:
    seen = case["observed"]
    model = model_of(case, hidden_size=2048, num_key_value_heads=16, q_lora_rank=None, intermediate_size=10944)
    # Builds that know no latent cache store expanded heads.
    plan = _cells(case, model, seen["cells"], engine="llamacpp@4500")
    return Outcome((same("MiB", plan.pool.bytes / MIB, seen["total_mib"]),))


def p60(case: Case) -> Outcome:
    seen = case["observed"]
    llama = {
        "model_type": "llama", "num_hidden_layers": 60, "hidden_size": 6656, "num_attention_heads": 52,
        "intermediate_size": 17920, "vocab_size": 32000, "max_position_embeddings": 2048,
    }  # fmt: skip
    model = model_from_config(llama, case["model"])
    wide, usual = (
        _cells(case, model, seen["n_ctx"], kv_cache_dtype=kind, value_cache_dtype=kind).pool.bytes / MIB
        for kind in ("f32", "f16")
    )
    return Outcome(
        (same("MB in f32", wide, seen["python_kv_mb"]), same("MB in f16", usual, seen["main_kv_mb"])),
    )


def _sglang_gib(case: Case, model: Model, tokens: int) -> float:
    """GiB of K, or of V, for so many tokens."""
    plan = plan_of(case, model, engine="sglang", num_gpu_blocks_override=tokens)
    return plan.pool.bytes / 2 / GIB


def p62(case: Case) -> Outcome:
    seen, model = case["observed"], model_of(case, model_type="qwen2", num_attention_heads=40)
    low, high = (plan_of(case, model, 2 * memory, engine="sglang").pool.tokens for memory in printed(seen["k_gb"]))
    return Outcome(
        (
            same("GiB of K", _sglang_gib(case, model, seen["kv_tokens"]), seen["k_gb"], 2),
            Check("tokens", low, high, seen["kv_tokens"]),
        )
    )


def p65(case: Case) -> Outcome:
    seen = case["observed"]
    gpt2 = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}
    model = model_from_config(gpt2, case["model"])
    return Outcome(
        (same("GiB of K", _sglang_gib(case, model, seen["kv_tokens"]), seen["k_gb_physical"], 2),),
        note=f"the {seen['k_gb_virtual']} GiB beside it are a virtual reservation, not capacity",
    )


def p66(case: Case) -> Outcome:
    seen = case["observed"]
    model = model_of(
        case, q_lora_rank=1536, qk_nope_head_dim=128, v_head_dim=128, n_routed_experts=256, num_experts_per_tok=8,
        n_shared_experts=1, moe_intermediate_size=2048, first_k_dense_replace=3,
    )  # fmt: skip
    plan = plan_of(case, model, engine="sglang", num_gpu_blocks_override=seen["max_total_num_tokens"])
    return Outcome((same("GiB on each GPU", plan.pool.bytes / GIB, 13.2, 1),))


def p69(case: Case) -> Outcome:
    return Outcome(
        (),
        "mem_fraction_static is a share of what is free when a replica starts: later replicas find less, so equal flags "
        "give 97,503, 53,149 and 20,961 tokens; a plan is of one engine on a card of its own",
    )


def p100(case: Case) -> Outcome:
    seen, model = case["observed"], model_of(case, num_attention_heads=64, intermediate_size=28672)
    plan = plan_of(
        case, model, engine="tgi", tensor_parallel_size=8, num_gpu_blocks_override=seen["max_batch_total_tokens"],
        block_size=1, max_model_len=seen["max_total_tokens"],
    )  # fmt: skip
    per_token = plan.stage.layout.bytes_per_token
    return Outcome(
        (
            same("bytes per token and GPU", per_token, 40_960),
            same("GiB of 16,000 tokens", per_token * seen["max_batch_total_tokens"] / GIB, 0.61, 2),
            Check(
                "GB of weights on a GPU",
                plan.memory.weights.bytes / 1e9 - 0.1,
                plan.memory.weights.bytes / 1e9 + 0.1,
                17.2,
                1,
            ),
        ),
        note="the cache is small here; weights and activation fill the card",
    )


REPLAYS: dict[str, Callable[[Case], Outcome]] = {
    "P51": p51, "P54": p54, "P56": p56, "P57": p57, "P60": p60, "P62": p62, "P65": p65, "P66": p66, "P69": p69,
    "P100": p100,
}  # fmt: skip
