"""The planner's blocks, tokens and groups are those that vLLM's own code computes, family by family."""

import json
import os
import random
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kvbudget.engines.flags import EngineFlags, Speculation
from kvbudget.errors import InputError
from kvbudget.model.read import model_from_config
from kvbudget.planner.build import make_plan
from kvbudget.planner.request import PlanRequest
from kvbudget.units import GIB, MIB, Bytes

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

Config = dict[str, Any]
ORACLE = Path(__file__).parent / "oracle.py"
LENGTH = 8192
SEED, STARTS = 1, int(os.environ.get("KVBUDGET_TRUTH_STARTS", "60"))  # a second for three of them

BASE: Config = {
    "num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1024, "max_position_embeddings": 131072,
}  # fmt: skip
LLAMA = BASE | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
# The published file of Gemma 2 had no layer_types; four layers a group, as two kinds.
GEMMA_2 = BASE | {
    "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "sliding_window": 4096, "num_hidden_layers": 6,
    "query_pre_attn_scalar": 64,
}  # fmt: skip
GEMMA_3 = BASE | {
    "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "sliding_window": 1024,
    "num_hidden_layers": 26, "query_pre_attn_scalar": 64,
}  # fmt: skip
GPT_OSS = BASE | {
    "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "sliding_window": 128, "num_local_experts": 4,
    "num_experts_per_tok": 2, "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip
LLAMA_4 = BASE | {
    "model_type": "llama4_text", "architectures": ["Llama4ForCausalLM"], "num_hidden_layers": 8,
    "attention_chunk_size": 2048, "intermediate_size_mlp": 1024, "num_local_experts": 2,
}  # fmt: skip
MLA = BASE | {
    "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "num_key_value_heads": 8,
    "kv_lora_rank": 512, "q_lora_rank": 256, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
    "moe_intermediate_size": 256, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1,
}  # fmt: skip
MLA_INDEXED = MLA | {
    "model_type": "deepseek_v32", "architectures": ["DeepseekV32ForCausalLM"], "index_head_dim": 128,
    "index_n_heads": 8, "index_topk": 512,
}  # fmt: skip
V4 = BASE | {
    "model_type": "deepseek_v4", "architectures": ["DeepseekV4ForCausalLM"], "head_dim": 512, "qk_rope_head_dim": 64,
    "num_key_value_heads": 1, "num_hidden_layers": 7, "sliding_window": 128, "index_head_dim": 128, "index_n_heads": 8,
    "index_topk": 512, "compress_ratios": [0, 0, 4, 128, 4, 128, 4, 0], "num_nextn_predict_layers": 1, "hc_mult": 4,
    "hc_eps": 1e-6, "hc_sinkhorn_iters": 2, "q_lora_rank": 256, "o_lora_rank": 256, "o_groups": 4,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 256,
    "num_hash_layers": 1, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": True,
    "routed_scaling_factor": 1.5, "swiglu_limit": 10.0, "compress_rope_theta": 160000, "rope_theta": 10000,
    "expert_dtype": "fp4", "rms_norm_eps": 1e-6, "hidden_act": "silu",
}  # fmt: skip
GDN = BASE | {
    "model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"], "num_hidden_layers": 8,
    "full_attention_interval": 4, "head_dim": 256, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_num_key_heads": 8, "linear_num_value_heads": 16, "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32",
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
}  # fmt: skip
MAMBA_2 = BASE | {
    "model_type": "nemotron_h", "architectures": ["NemotronHForCausalLM"], "num_hidden_layers": 10, "head_dim": 128,
    "hybrid_override_pattern": "M-M*-M-M*-", "mamba_num_heads": 16, "mamba_head_dim": 64, "n_groups": 8,
    "ssm_state_size": 128, "conv_kernel": 4, "expand": 2, "mamba_ssm_cache_dtype": "float32",
}  # fmt: skip
OTHERS: dict[str, Config] = json.loads((Path(__file__).parent / "data" / "planner_models.json").read_text())
EAGLE_3 = LLAMA | {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 1024}

ESTIMATE = re.compile(r"estimated maximum model length is (\d+)")


class Case(NamedTuple):
    """One model and how it is started. `flags` are EngineFlags' names, which are vLLM's."""

    config: Config
    flags: Mapping[str, Any] = {}
    memory: int = GIB
    length: int = LENGTH
    speculation: Mapping[str, Any] | None = None
    draft: Config | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    context_parallel: int = 1


MTP = {"method": "mtp", "num_speculative_tokens": 1}
CASES = {
    "equal layers": Case(LLAMA),
    "equal layers, tensor parallel": Case(LLAMA, tensor_parallel=2),
    "equal layers, more ranks than heads": Case(LLAMA, tensor_parallel=4),
    "equal layers, pipeline parallel": Case(LLAMA | {"num_hidden_layers": 5}, pipeline_parallel=2),
    "equal layers, fp8": Case(LLAMA, {"kv_cache_dtype": "fp8"}),
    "equal layers, blocks of 32": Case(LLAMA, {"block_size": 32}),
    "equal layers, a pool that is too small": Case(LLAMA, memory=4 * MIB),
    "equal layers, blocks given": Case(LLAMA, {"num_gpu_blocks_override": 700}),
    "equal layers, EAGLE draft": Case(
        LLAMA, speculation={"method": "eagle3", "num_speculative_tokens": 3}, draft=EAGLE_3
    ),
    "equal layers, ngram": Case(LLAMA, speculation={"method": "ngram", "num_speculative_tokens": 4}),
    "sliding, class defaults": Case(GEMMA_2, length=32768),
    "sliding, padded groups": Case(GEMMA_3, length=32768),
    "sliding, padded groups, fp8": Case(GEMMA_3, {"kv_cache_dtype": "fp8"}, length=32768),
    "sliding, one manager": Case(GEMMA_3, {"disable_hybrid_kv_cache_manager": True}, length=32768),
    "sliding, synchronous": Case(GEMMA_3, {"async_scheduling": False}, length=32768),
    "sliding, small window": Case(GPT_OSS, length=32768),
    "sliding, pipeline parallel": Case(GPT_OSS | {"num_hidden_layers": 8, "layer_types": GPT_OSS["layer_types"] * 2},
                                       length=32768, pipeline_parallel=2),
    "chunked": Case(LLAMA_4, length=32768),
    "latent": Case(MLA),
    "latent, tensor parallel": Case(MLA, tensor_parallel=2),
    "equal layers, context parallel": Case(LLAMA, length=10000, tensor_parallel=8, context_parallel=4),
    "latent, context parallel": Case(MLA, length=10000, tensor_parallel=4, context_parallel=4),
    "latent with indexer, context parallel": Case(MLA_INDEXED, length=10000, tensor_parallel=4, context_parallel=2),
    "recurrent, context parallel": Case(GDN, length=10000, tensor_parallel=4, context_parallel=2),
    "latent, MTP": Case(MLA, speculation=MTP),
    "latent with indexer": Case(MLA_INDEXED),
    "latent with indexer, fp8": Case(MLA_INDEXED, {"kv_cache_dtype": "fp8_ds_mla"}),
    "compressed": Case(V4, length=32768),
    "recurrent": Case(GDN, length=32768),
    "recurrent, no prefix caching": Case(GDN, {"enable_prefix_caching": False}, length=32768),
    "recurrent, tensor parallel": Case(GDN, length=32768, tensor_parallel=2),
    "recurrent, fp8": Case(GDN, {"kv_cache_dtype": "fp8"}, length=32768),
    "recurrent, MTP": Case(GDN | {"mtp_num_hidden_layers": 1}, length=32768, speculation=MTP),
    "recurrent, states in bf16": Case(GDN, {"mamba_ssm_cache_dtype": "bfloat16"}, length=32768),
    "recurrent, a stage without attention": Case(
        MAMBA_2 | {"hybrid_override_pattern": "M-M-M*-M-*"}, pipeline_parallel=2
    ),
    "Mamba 2": Case(MAMBA_2, length=32768),
    "Mamba 2, no prefix caching": Case(MAMBA_2, {"enable_prefix_caching": False}, length=32768),
    # Found by the random starts below.
    "Mamba 2, two stages": Case(MAMBA_2, length=1024, tensor_parallel=2, pipeline_parallel=2),
    "recurrent, MTP in the last stage": Case(GDN | {"mtp_num_hidden_layers": 1}, {"mamba_ssm_cache_dtype": "bfloat16"},
                                             length=1024, speculation=MTP, pipeline_parallel=2),
    "recurrent, one manager": Case(GDN, {"disable_hybrid_kv_cache_manager": True}),
    "compressed, stages in a pool that is too small": Case(V4, memory=GIB // 4, length=32768, tensor_parallel=4,
                                                           pipeline_parallel=2),
} | {name: Case(config, length=32768) for name, config in OTHERS.items()}  # fmt: skip


def random_case(number: int) -> Case:
    """A model of the above with random flags; each depends on its number alone."""
    chance = random.Random(f"{SEED}/{number}")
    models = {case.config["model_type"]: case.config for case in CASES.values()}
    config = models[chance.choice(sorted(models))]
    recurrent = any(key.startswith(("mamba", "linear_", "conv")) for key in config)
    choices: dict[str, tuple[Any, ...]] = {
        "max_num_batched_tokens": (1024, 2048, 4096, 16384),
        "enable_prefix_caching": (False,),
        "kv_cache_dtype": ("fp8_ds_mla" if "index_head_dim" in config else "fp8",),
        "block_size": (64, 128, 256),
        "async_scheduling": (False,),
        "num_gpu_blocks_override": (500, 3000),
        "disable_hybrid_kv_cache_manager": (True,),
        "mamba_ssm_cache_dtype": ("float32", "bfloat16") if recurrent else ("auto",),
    }
    if "compress_ratios" in config:
        del choices["block_size"]
    flags = {
        name: chance.choice(choices[name]) for name in chance.sample(sorted(choices), chance.choice((0, 1, 1, 2, 3)))
    }
    speculation = None
    if chance.random() < 0.25:
        mtp = "num_nextn_predict_layers" in config and "index_head_dim" not in config
        speculation = {"method": "mtp" if mtp else "ngram", "num_speculative_tokens": chance.choice((1, 2, 5))}
    return Case(
        config,
        flags,
        memory=chance.choice((GIB // 4, GIB, 5 * GIB, GIB + 12345)),
        length=chance.choice((1024, 4096, 8192, 10000, 32768, 131072)),
        speculation=speculation,
        tensor_parallel=chance.choice((1, 1, 1, 2, 4)),
        pipeline_parallel=chance.choice((1, 1, 1, 2)),
    )


RANDOM_CASES = {f"start {number}": random_case(number) for number in range(STARTS)}


@pytest.fixture(scope="module")
def answers(engine_venv: Path, figures: list[str]) -> dict[str, dict[str, Any]]:
    """What vLLM computes for each case: all of them in one run, as importing it takes longer than all answers."""
    jobs = [
        {
            "config": case.config,
            "memory": case.memory,
            "max_model_len": case.length,
            "flags": dict(case.flags),
            "tensor_parallel": case.tensor_parallel,
            "pipeline_parallel": case.pipeline_parallel,
            "context_parallel": case.context_parallel,
        }
        | ({"speculation": dict(case.speculation)} if case.speculation else {})
        | ({"draft": case.draft} if case.draft else {})
        for case in (CASES | RANDOM_CASES).values()
    ]
    start = time.monotonic()
    done = subprocess.run(
        [engine_venv / "bin" / "python", ORACLE],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    figures.append(f"planner truth: {len(found)} pools computed by vLLM in {time.monotonic() - start:.0f} s")
    return dict(zip(CASES | RANDOM_CASES, found, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_the_plan_is_what_vllm_computes(name: str, answers: dict[str, dict[str, Any]]) -> None:
    assert "broken" not in answers[name], answers[name]["broken"]
    assert differences(CASES[name], answers[name]) == []


def test_random_starts_are_what_vllm_computes(answers: dict[str, dict[str, Any]], figures: list[str]) -> None:
    built = {name: case for name, case in RANDOM_CASES.items() if "broken" not in answers[name]}
    assert len(built) >= 0.75 * STARTS, "vLLM could not build most of the models"
    wrong = {name: found for name, case in built.items() if (found := differences(case, answers[name]))}
    figures.append(f"planner truth: {len(built) - len(wrong)} of {len(built)} random starts as vLLM computes them")
    assert not wrong, "\n".join(f"{name} {shown(RANDOM_CASES[name])}: {found}" for name, found in wrong.items())


def shown(case: Case) -> str:
    """A case in one line."""
    given = {name: value for name, value in case._asdict().items() if value and name not in ("config", "draft")}
    return f"{case.config['model_type']} {given}"


def differences(case: Case, truth: dict[str, Any]) -> list[str]:
    """What the planner says otherwise than vLLM."""
    plan = make_plan(request_of(case))
    pool, layout = plan.pool, plan.stage.layout
    if "refused" in truth:
        # The engine names the length of the first stage that does not fit; a later one may take even less.
        lengths = set(re.findall(r"estimated maximum model length is \d+", truth["refused"]))
        said = {
            text
            for finding in plan.findings
            for text in re.findall(r"estimated maximum model length is \d+", finding.message)
        }
        named = [f"says {sorted(said)}, not {sorted(lengths)}"] if lengths and lengths != said else []
        return named + (["it would start"] if plan.fits else [])
    pairs = {
        "blocks of a request": (
            sorted(g.blocks_for(pool.max_model_len) for g in layout.groups),
            sorted(truth["blocks_per_request"]),
        ),
        "block sizes": (sorted(g.block_size for g in layout.groups), sorted(truth["block_sizes"])),
        "tokens in flight": (plan.settings.max_in_flight_tokens, truth["in_flight"]),
        "blocks": (pool.num_blocks, truth["num_blocks"]),
        "tokens": (pool.tokens, truth["tokens"]),
        "concurrency": (round(pool.concurrency, 9), round(truth["concurrency"], 9)),
    }
    if case.context_parallel > 1:  # our blocks count the tokens of all ranks, vLLM's those of one
        del pairs["block sizes"]
    return [f"{name}: {ours}, vLLM {theirs}" for name, (ours, theirs) in pairs.items() if ours != theirs]


def test_the_cases_would_show_a_wrong_planner(answers: dict[str, dict[str, Any]]) -> None:
    """Each way of being started changes the answer, so a planner that ignored it would differ somewhere."""
    pools = {json.dumps(answers[name], sort_keys=True) for name in CASES}
    assert len(CASES) - len(pools) <= 8, "many cases give the same pool as another one"


def request_of(case: Case) -> PlanRequest:
    """The same start, for the planner."""
    speculation = None
    if case.speculation:
        draft = model_from_config(case.draft, "draft") if case.draft else None
        speculation = Speculation(case.speculation["method"], case.speculation["num_speculative_tokens"], draft)
    flags = EngineFlags(
        max_model_len=case.length,
        max_num_batched_tokens=8192,
        max_num_seqs=256,
        enforce_eager=True,
        tensor_parallel_size=case.tensor_parallel,
        pipeline_parallel_size=case.pipeline_parallel,
        decode_context_parallel_size=case.context_parallel,
        speculation=speculation,
    )._replace(**case.flags)
    try:
        model = model_from_config(case.config, "m")
    except InputError as error:  # the planner lacks something that vLLM has
        pytest.fail(f"the planner refuses what vLLM takes: {error}")
    return PlanRequest(model=model, engine="vllm@0.32", flags=flags, kv_cache_memory=Bytes(case.memory))
