# ruff: noqa: D103  (the reports are told apart by their ids; what each says is in their file)
"""Reports about vLLM with layers of several kinds: windows, chunks, latents, recurrent states."""

import json
from collections.abc import Callable

from cases.replay import (
    ROOT,
    Case,
    Check,
    Outcome,
    card_of,
    holds,
    model_of,
    near,
    needed,
    plan_of,
    pool_checks,
    printed,
    same,
)

from kvbudget.engines.flags import Speculation
from kvbudget.model.read import model_from_config
from kvbudget.units import GIB


def p08(case: Case) -> Outcome:
    seen, model = case["observed"], model_of(case)
    low, high = (plan_of(case, model, memory).pool.largest_max_model_len for memory in printed(seen["avail_gib"]))
    page = 512  # of the TPU's attention
    checks = (
        same("GiB needed", needed(plan_of(case, model, GIB)), seen["need_gib"], 2),
        Check("longest, in pages of 512", low // page * page, high // page * page, seen["est_max_len"]),
    )
    return Outcome(checks, "the TPU plugin floors the longest length to its page of 512 tokens")


def p09(case: Case) -> Outcome:
    seen = case["observed"]
    model = model_of(case, model_type="llama4_text", num_attention_heads=40, max_position_embeddings=1 << 20)
    low, high = (
        plan_of(case, model, memory, max_model_len=seen["max_model_len"]) for memory in printed(seen["avail_gib"])
    )
    checks = (
        same("GiB needed", needed(low), seen["need_gib"], 2),
        Check("longest", low.pool.largest_max_model_len, high.pool.largest_max_model_len, 435_600),
        holds("refused at 1,048,576", not high.fits),
    )
    return Outcome(checks)


def p20(case: Case) -> Outcome:
    seen, model, card = case["observed"], model_of(case), card_of(case, 50)
    low, high = (
        plan_of(case, model, memory, engine="vllm@0.20.0", **card).pool for memory in printed(seen["kv_gb"], 0)
    )
    new = plan_of(case, model, seen["kv_gb"] * GIB, engine="vllm@0.21", **card).pool
    graphs = seen["kv_gb"] * (1 - seen["v0_21_tokens"] / new.tokens)
    return Outcome(
        (
            Check("tokens as 0.20 logs them", low.tokens, high.tokens, seen["v0_20_tokens"], -3),
            Check("tokens as 0.21 logs them", new.tokens * 0.88, new.tokens, seen["v0_21_tokens"], -3),
            holds("the same concurrency", abs(low.concurrency / new.concurrency - 1) < 0.02),
        ),
        "the same blocks: 0.21 changed what the line in the log means, and takes CUDA graphs off first "
        f"({graphs:.1f} GiB here)",
    )


def p21(case: Case) -> Outcome:
    seen, model = case["observed"], model_of(case)
    blocks = seen["kv_tokens"] // 16 * 6  # (blocks // 6 groups) x 16 tokens
    low, high = (plan_of(case, model, num_gpu_blocks_override=count) for count in (blocks, blocks + 5))
    need = sorted(group.blocks_for(262144) for group in high.stage.layout.groups)
    return Outcome(
        (
            Check("tokens", low.pool.tokens, high.pool.tokens, seen["kv_tokens"]),
            Check("concurrency", low.pool.concurrency, high.pool.concurrency, seen["max_concurrency"], 2),
            holds("8,192 + 5 x 1,089 blocks", need == [1089] * 5 + [8192]),
        )
    )


def p25(case: Case) -> Outcome:
    seen = case["observed"]
    checks = pool_checks(
        case, model_of(case), seen["avail_gib"], tokens=seen["kv_tokens"], concurrency=seen["max_concurrency"],
        enable_prefix_caching=True,
    )  # fmt: skip
    return Outcome(checks, note="16 + 3 x 2 blocks: prefix caching was on, which the excerpt does not show")


def p27(case: Case) -> Outcome:
    plan = plan_of(case, model_of(case), GIB)
    state = 3_207_168  # bytes of one layer's state
    page = plan.stage.layout.groups[0].page_size_bytes
    return Outcome(
        (
            same("block size", plan.settings.block_size, case["observed"]["block_size_bf16"]),
            same("padding %", (page - state) / state * 100, case["observed"]["mamba_pad_pct"], 2),
        )
    )


def p29(case: Case) -> Outcome:
    seen, model = case["observed"], model_of(case, max_position_embeddings=262144)
    checks = pool_checks(
        case, model, seen["avail_gib_per_gpu"], tokens=seen["kv_tokens"], concurrency=seen["max_concurrency"]
    )
    plan = plan_of(case, model, int(seen["avail_gib_per_gpu"] * GIB))
    longer = plan_of(case, model, int(seen["avail_gib_per_gpu"] * GIB), max_model_len=262144)
    return Outcome(
        (
            *checks,
            same("block size", plan.settings.block_size, seen["block_size"]),
            holds("262,144 fits once", longer.fits),
        )
    )


def p32(case: Case) -> Outcome:
    seen, model = case["observed"], model_from_config(_config("deepseek-v4"), case["model"])
    alone, shared = (
        plan_of(case, model, 100 * GIB, max_model_len=1 << 20, tensor_parallel_size=ranks).pool.concurrency
        for ranks in (1, 8)
    )
    ratio = seen["dp8_conc_1M"] / seen["tp8_conc_1M"]
    return Outcome(
        (
            holds("a rank of TP 8 holds what one GPU holds", alone == shared),
            holds("eight replicas hold seven to eight times it", 7 < ratio < 8 * alone / shared),
        ),
        "the latent is on every TP rank; the rest of 8 to 7.7 is weights that data parallelism repeats",
    )


def p33(case: Case) -> Outcome:
    seen, model = case["observed"], model_from_config(_config("deepseek-v4"), case["model"])
    in_flight = 16384  # two batches of 8,192: with one, a request of this length would need half of what was seen
    plan = plan_of(
        case, model, int(seen["avail_gib"] * GIB), max_model_len=seen["max_model_len"], max_num_batched_tokens=in_flight
    )
    checks = (
        holds("refused at 30,000", not plan.fits),
        near("GiB needed", needed(plan), seen["need_gib"], 0.05 * seen["need_gib"]),
        Check("longest", plan.pool.largest_max_model_len * 0.95, plan.pool.largest_max_model_len, seen["est_max_len"]),
    )
    return Outcome(
        checks,
        f"{needed(plan):.2f} GiB needed, longest {plan.pool.largest_max_model_len:,}: pages of 0.22 are 5 % larger than those of "
        "0.32, whose rule this is; scaling by tokens would say 24,504",
    )


def p35(case: Case) -> Outcome:
    seen = case["observed"]
    model = model_from_config(_config("glm-5.2"), case["model"])
    plan = plan_of(
        case, model, seen["kv_cache_memory_bytes"], kv_cache_dtype="fp8_ds_mla", speculation=Speculation("mtp", 1)
    )
    return Outcome(
        (
            same("tokens", plan.pool.tokens, seen["kv_tokens"]),
            same("concurrency", plan.pool.concurrency, seen["max_concurrency"], 2),
        )
    )


def p49(case: Case) -> Outcome:
    seen, model = case["observed"], model_of(case, model_type="gemma3_text", num_attention_heads=16)
    given = {"engine": "vllm@0.32", "tensor_parallel_size": 1, "disable_hybrid_kv_cache_manager": True}
    low, high = (plan_of(case, model, memory, max_model_len=131072, **given) for memory in printed(seen["avail_gib"]))
    page = 128  # of the accelerator's attention
    lengths = [plan.pool.largest_max_model_len // page * page for plan in (low, high)]
    return Outcome(
        (
            same("GiB needed", needed(low), seen["need_gib"], 2),
            Check("longest, in pages of 128", lengths[0], lengths[1], seen["est_max_len"]),
        ),
        "a plugin without groups: every layer at full length, all chips counted together, floored to its page of 128",
    )


def p70i(case: Case) -> Outcome:
    text = {
        "model_type": "deepseek_v3", "num_hidden_layers": 27, "hidden_size": 2048, "num_attention_heads": 16,
        "num_key_value_heads": 16, "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 11264, "moe_intermediate_size": 1408,
        "n_routed_experts": 64, "num_experts_per_tok": 6, "n_shared_experts": 2, "vocab_size": 163840,
        "max_position_embeddings": 131072, "first_k_dense_replace": 1,
    }  # fmt: skip
    model = model_from_config({"model_type": "kimi_vl", "text_config": text}, case["model"])
    plan = plan_of(case, model, 50 * GIB, max_model_len=8192)
    return Outcome(
        (same("bytes per token", plan.stage.layout.bytes_per_token, 27 * 576 * 2),),
        "MLA fields in text_config are read; as multi-head attention it would be 8.9 times as much",
    )


def p80(case: Case) -> Outcome:
    seen, model = case["observed"], model_from_config(_config("kimi-k3"), case["model"])
    plan = plan_of(case, model, 40 * GIB, max_model_len=8192, decode_context_parallel_size=1)
    share = plan.stage.layout.blocks_for(seen["prompt_tokens"]) / plan.pool.usable_blocks
    return Outcome(
        (
            holds(
                "12 tokens take a hundred times their share", share > 100 * seen["prompt_tokens"] / seen["pool_tokens"]
            ),
        ),
        f"blocks in every group, whatever the prompt; its config is not public, on Kimi-K3 12 tokens take {share:.1%} of "
        "40 GiB",
    )


def _config(name: str) -> dict[str, object]:
    """A public config whose figures a report leaves out."""
    configs: dict[str, dict[str, object]] = json.loads((ROOT / "scripts" / "data" / "fuzz_configs.json").read_text())
    return configs[name]


REPLAYS: dict[str, Callable[[Case], Outcome]] = {
    "P08": p08, "P09": p09, "P20": p20, "P21": p21, "P25": p25, "P27": p27, "P29": p29, "P32": p32, "P33": p33, "P35": p35, "P49": p49, "P70i": p70i, "P80": p80,
}  # fmt: skip
