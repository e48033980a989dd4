"""Flags that an engine has nothing like, and stages that keep nothing."""

from typing import Any

import pytest

from kvbudget.engines.flags import EngineFlags
from kvbudget.engines.registry import NAMES, engine_named
from kvbudget.errors import InputError, UnsupportedError
from kvbudget.model.read import Model, model_from_config
from kvbudget.units import GIB

LLAMACPP: dict[str, Any] = {
    "value_cache_dtype": "q8_0", "kv_unified": True, "swa_full": True, "gpu_layers": 0, "micro_batch": 64,
    "flash_attention": False, "tensor_split": (3.0, 1.0), "fit_context": False, "kv_offload": False,
}  # fmt: skip
# what each engine lacks; everything else changes its settings
LACKING: dict[str, dict[str, Any]] = {
    "vllm": {**LLAMACPP, "window_pools": True, "max_pool_tokens": 64},
    "sglang": {**LLAMACPP, "window_pools": True, "mamba_cache_dtype": "float32", "decode_context_parallel_size": 2},
    "trtllm": {
        **LLAMACPP, "max_pool_tokens": 64, "disable_hybrid_kv_cache_manager": True, "mamba_cache_dtype": "float32",
        "mamba_ssm_cache_dtype": "float32", "decode_context_parallel_size": 2,
    },
    "tgi": {
        **LLAMACPP, "max_pool_tokens": 64, "window_pools": True, "pipeline_parallel_size": 2,
        "decode_context_parallel_size": 2,
        "data_parallel_size": 2, "async_scheduling": True, "disable_hybrid_kv_cache_manager": True,
        "mamba_cache_dtype": "float32", "mamba_ssm_cache_dtype": "float32", "pp_layer_partition": (4,),
    },
    "llamacpp": {
        "tensor_parallel_size": 2, "decode_context_parallel_size": 2, "gpu_memory_utilization": 0.9, "block_size": 16,
        "num_gpu_blocks_override": 100, "data_parallel_size": 2, "dtype": "half", "async_scheduling": True,
        "disable_hybrid_kv_cache_manager": True, "mamba_cache_dtype": "float32", "mamba_ssm_cache_dtype": "float32",
        "enforce_eager": True, "window_pools": True, "max_pool_tokens": 64,
    },
}  # fmt: skip


def llama(layers: int = 4, **config: Any) -> Model:
    return model_from_config({"model_type": "llama", "num_hidden_layers": layers, **config})


@pytest.mark.parametrize(
    ("engine", "name", "value"), [(engine, *item) for engine in NAMES for item in LACKING[engine].items()]
)
def test_a_flag_that_an_engine_has_nothing_like_is_refused_by_name(engine: str, name: str, value: Any) -> None:
    flags = EngineFlags(max_model_len=1024, **{name: value})
    with pytest.raises(InputError) as caught:
        engine_named(engine).settle(llama(), flags, 80 * GIB, "")
    assert caught.value.fix


def test_the_refusal_names_the_flag_its_value_and_the_engine() -> None:
    flags = EngineFlags(max_model_len=1024, num_gpu_blocks_override=100)
    with pytest.raises(UnsupportedError) as caught:
        engine_named("llamacpp").settle(llama(), flags, 0, "")
    assert caught.value.message == "--num-gpu-blocks-override 100: llama.cpp has nothing like it"
    assert caught.value.fix == "leave it out"


PRUNED = {
    "model_type": "nemotron-nas", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 4,
    "vocab_size": 1000, "max_position_embeddings": 4096,
    "block_configs": [
        {"attention": {"n_heads_in_group": 4, "no_op": no_op, "replace_with_linear": False},
         "ffn": {"ffn_mult": 1.0, "no_op": False, "replace_with_linear": False}}
        for no_op in (False, False, True, True)
    ],
}  # fmt: skip


def test_a_stage_of_pruned_layers_divides_by_zero_in_vllm() -> None:
    """v1/core/kv_cache_utils.py: get_kv_cache_config_from_groups."""
    rule, model = engine_named("vllm"), model_from_config(PRUNED)
    settings = rule.settle(model, EngineFlags(max_model_len=1024, pipeline_parallel_size=2), 80 * GIB, "")
    stages = rule.stages(model, settings)
    pool = rule.pool(model, settings, stages, [GIB, GIB])
    (refusal,) = rule.refusals(model, settings, stages, pool)
    assert refusal.code == "stage_without_cache"
    assert refusal.message.startswith("ZeroDivisionError: integer division or modulo by zero")


@pytest.mark.parametrize("engine", ["sglang", "trtllm"])
def test_a_stage_of_pruned_layers_is_refused_where_nothing_is_known_of_it(engine: str) -> None:
    rule, model = engine_named(engine), model_from_config(PRUNED)
    settings = rule.settle(model, EngineFlags(max_model_len=1024, pipeline_parallel_size=2), 80 * GIB, "")
    with pytest.raises(UnsupportedError, match="the pipeline stage of layers 2 to 3 keeps no cache"):
        rule.stages(model, settings)


def test_a_card_of_pruned_layers_holds_no_cache_in_llama_cpp() -> None:
    rule, model = engine_named("llamacpp"), model_from_config(PRUNED)
    settings = rule.settle(model, EngineFlags(max_model_len=1024, pipeline_parallel_size=2), 80 * GIB, "")
    stages = rule.stages(model, settings)
    assert rule.pool(model, settings, stages, [GIB, GIB]).stage == 0
