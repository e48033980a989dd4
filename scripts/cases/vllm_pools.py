# ruff: noqa: D103  (the reports are told apart by their ids; what each says is in their file)
"""Reports about vLLM whose layers are all alike: the pool, and who decides it."""

from collections.abc import Callable

from cases.replay import (
    Case,
    Check,
    Outcome,
    draft,
    holds,
    model_of,
    near,
    plan_of,
    pool_checks,
    printed,
    same,
    weights,
)

from kvbudget.engines.flags import AUTO_LENGTH
from kvbudget.model.read import model_from_config
from kvbudget.units import GIB, MIB, Bytes

OTHER_RANK = "the GiB in the log is one rank's, the pool is the tightest rank's"


def p01(case: Case) -> Outcome:
    seen = case["observed"]
    return Outcome(
        pool_checks(case, model_of(case), seen["kv_gib"], tokens=31232, blocks=seen["gpu_blocks"], concurrency=1.56)
    )


def p02(case: Case) -> Outcome:
    seen, model = case["observed"], model_of(case)
    refused = plan_of(case, model, num_gpu_blocks_override=seen["gpu_blocks"])
    checks = pool_checks(
        case, model, seen["kv_gib"], tokens=seen["kv_tokens"], blocks=seen["gpu_blocks"], concurrency=0.82
    )
    return Outcome((*checks, holds("refused at 29,000", not refused.fits)))


def p03(case: Case) -> Outcome:
    seen = case["observed"]
    plan = plan_of(case, model_of(case), num_gpu_blocks_override=seen["kv_tokens"] // 16)
    checks = (
        same("tokens", plan.pool.tokens, seen["kv_tokens"]),
        same("GiB of the other rank", plan.pool.bytes / GIB, 7.465, 3),
        holds("refused at 131,072", not plan.fits),
    )
    return Outcome(checks, OTHER_RANK)


def p05(case: Case) -> Outcome:
    plan = plan_of(case, model_of(case), num_gpu_blocks_override=case["observed"]["gpu_blocks"])
    return Outcome(
        (
            same("tokens", plan.pool.tokens, case["observed"]["kv_tokens"]),
            same("longest", plan.pool.largest_max_model_len, 6048),
            holds("refused at 8,192", not plan.fits),
        )
    )


def p15(case: Case) -> Outcome:
    seen, model = case["observed"], model_of(case)
    low, high = (plan_of(case, model, memory, engine="vllm@0.32") for memory in printed(seen["kv_mib"], 0, MIB))
    return Outcome(
        (
            Check("blocks", low.pool.num_blocks, high.pool.num_blocks, seen["physical_blocks"]),
            Check("usable", low.pool.usable_blocks, high.pool.usable_blocks, seen["usable_blocks"]),
            same("usable tokens", seen["usable_blocks"] * high.settings.block_size, seen["usable_tokens"]),
        )
    )


def p16(case: Case) -> Outcome:
    seen = case["observed"]
    plan = plan_of(case, model_of(case), num_gpu_blocks_override=seen["vllm"]["kv_tokens"] // 16)
    tokens, sglang = (
        seen["sglang"]["kv_tokens"],
        plan_of(case, model_of(case), engine="sglang", num_gpu_blocks_override=seen["sglang"]["kv_tokens"]),
    )
    return Outcome(
        (
            same("vLLM tokens", plan.pool.tokens, seen["vllm"]["kv_tokens"]),
            same("GiB of the tightest rank", plan.pool.bytes / GIB, 8.018, 3),
            same("SGLang tokens", sglang.pool.tokens, tokens),
            same("SGLang GiB of K", sglang.pool.bytes / 2 / GIB, seen["sglang"]["k_gb"], 2),
        ),
        OTHER_RANK + "; SGLang's GB are GiB",
    )


def p38(case: Case) -> Outcome:
    seen = case["observed"]
    given = {"gpu_memory": Bytes(int(seen["total_gib"] * GIB)), "weights": weights(seen["weights_gib"])}
    given |= {
        "activation": Bytes(int(seen["activation_gib"] * GIB)),
        "overhead": Bytes(int(seen["non_torch_gib"] * GIB)),  # the parts add up to the pool without the graphs
    }
    split = plan_of(case, model_of(case), **given).memory.kv.bytes / GIB
    checks = pool_checks(
        case, model_of(case), seen["avail_gib"], tokens=seen["kv_tokens"], concurrency=seen["max_concurrency"]
    )
    return Outcome((near("GiB left, from its parts", split, seen["avail_gib"], 0.02), *checks))


def p39(case: Case) -> Outcome:
    seen = case["observed"]
    plan = plan_of(case, model_of(case), num_gpu_blocks_override=seen["kv_tokens"] // 16)
    return Outcome(
        (
            same("tokens", plan.pool.tokens, seen["kv_tokens"]),
            same("concurrency", plan.pool.concurrency, seen["max_concurrency"], 2),
            holds("within 0.3 % of the printed rank", abs(plan.pool.bytes / GIB / seen["avail_gib_tp3"] - 1) < 0.003),
        ),
        OTHER_RANK + "; 0.2 % above this one: the excerpt may mix two starts",
    )


def p40(case: Case) -> Outcome:
    seen = case["observed"]
    return Outcome(
        pool_checks(
            case, model_of(case), seen["avail_gib"], tokens=seen["kv_tokens"], concurrency=seen["max_concurrency"]
        )
    )


def p46(case: Case) -> Outcome:
    seen, model = case["observed"], model_of(case)
    head = model_from_config(
        {
            "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 4096, "num_attention_heads": 32,
            "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072,
        },
        "EAGLE head",
    )  # fmt: skip
    return Outcome(
        pool_checks(
            case, model, seen["avail_gib"], tokens=seen["kv_tokens"], concurrency=seen["max_concurrency"],
            speculation=draft(head, "eagle"),
        )
    )  # fmt: skip


def p70a(case: Case) -> Outcome:
    seen = case["observed"]
    return Outcome(
        pool_checks(
            case, model_of(case), seen["avail_gib"], tokens=seen["kv_tokens"], blocks=seen.get("num_gpu_blocks"),
            concurrency=seen.get("max_concurrency_8192"),
        )
    )  # fmt: skip


def p70f(case: Case) -> Outcome:
    checks = []
    for version, seen in case["observed"]["by_version"].items():
        engine = "vllm@" + version.rpartition(".")[0]
        found = pool_checks(case, model_of(case), seen["kv"], concurrency=seen["conc"], engine=engine)
        checks += [check._replace(what=f"concurrency in {version}") for check in found]
    return Outcome(tuple(checks))


def p70h(case: Case) -> Outcome:
    seen, model = case["observed"], model_of(case)
    plan = plan_of(case, model, num_gpu_blocks_override=seen["num_blocks"])
    blocks = plan.stage.layout.blocks_for(seen["live"]["prompt_tokens"])
    checks = pool_checks(
        case, model, seen["avail_gib"], tokens=seen["kv_tokens"], blocks=seen["num_blocks"],
        concurrency=seen["max_concurrency_16000"],
    )  # fmt: skip
    return Outcome(
        (
            *checks,
            same("blocks of 15,049 tokens", blocks, seen["live"]["blocks"]),
            Check("usage %", blocks / plan.pool.num_blocks * 100, blocks / plan.pool.usable_blocks * 100, 8.18, 2),
        )
    )


def p71(case: Case) -> Outcome:
    seen, model = case["observed"], model_of(case)
    checks = pool_checks(case, model, seen["kv_gib"], tokens=seen["kv_tokens"], concurrency=seen["max_concurrency"])
    plan = plan_of(case, model, int(seen["kv_gib"] * GIB))
    return Outcome(
        (
            *checks,
            same("ceiling", plan.ceilings.ceiling, seen["max_num_seqs"]),
            holds("limited by max_num_seqs", plan.ceilings.limited_by == "max_num_seqs"),
        )
    )


def p87(case: Case) -> Outcome:
    plan = plan_of(case, model_of(case), num_gpu_blocks_override=case["observed"]["gpu_blocks"])
    return Outcome((same("concurrency", plan.pool.concurrency, case["observed"]["max_concurrency"], 2),))


def p88(case: Case) -> Outcome:
    seen = case["observed"]
    model = model_of(case, num_attention_heads=14)
    return Outcome(
        pool_checks(
            case,
            model,
            seen["kv_gib"],
            tokens=3_041_600,
            blocks=seen["gpu_blocks"],
            concurrency=seen["max_concurrency"],
        )
    )


def p96(case: Case) -> Outcome:
    seen = case["observed"]
    opt = {
        "model_type": "opt", "num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "ffn_dim": 3072,
        "vocab_size": 50272, "max_position_embeddings": 2048, "word_embed_proj_dim": 768,
    }  # fmt: skip
    model = model_from_config(opt, case["model"])
    given = {"num_gpu_blocks_override": seen["pool_blocks"], "block_size": seen["block_size"]}
    before, after = (
        plan_of(case, model, engine=f"vllm@{version}", max_model_len=AUTO_LENGTH, **given).pool.max_model_len
        for version in ("0.25", "0.32")
    )
    return Outcome(
        (
            same("auto length before", before, seen["auto_fit_before"]),
            same("auto length after", after, seen["auto_fit_after"]),
        )
    )


def p98(case: Case) -> Outcome:
    plan = plan_of(case, model_of(case), num_gpu_blocks_override=case["observed"]["gpu_blocks"], max_model_len=16384)
    return Outcome((same("tokens", plan.pool.tokens, 8112), holds("refused at 16,384", not plan.fits)))


REPLAYS: dict[str, Callable[[Case], Outcome]] = {
    "P01": p01, "P02": p02, "P03": p03, "P05": p05, "P15": p15, "P16": p16, "P38": p38, "P39": p39, "P40": p40, "P46": p46, "P70a": p70a, "P70f": p70f, "P70h": p70h, "P71": p71, "P87": p87, "P88": p88, "P96": p96, "P98": p98, "P43": p40, "P44": p40, "P74": p40, "P70b": p70a,
}  # fmt: skip
