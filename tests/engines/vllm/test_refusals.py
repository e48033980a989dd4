"""What vLLM refuses because of a model's own kinds of cache."""

import pytest

from kvbudget.engines.flags import EngineFlags, Speculation
from kvbudget.engines.rule import Refusal
from kvbudget.engines.vllm.rule import Vllm
from kvbudget.errors import UnsupportedError
from kvbudget.model.read import Model, model_from_config
from kvbudget.units import GIB

QWEN4 = model_from_config({"model_type": "qwen4_exp_text", "num_hidden_layers": 8, "ple_layer_ids": [1]})
QWEN35 = model_from_config({"model_type": "qwen3_5_text"})  # gated delta net beside full attention
INKLING = model_from_config(
    {
        "model_type": "inkling_model",
        "hidden_size": 6144,
        "num_hidden_layers": 6,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "swa_num_key_value_heads": 16,
        "local_layer_ids": [0, 1, 2, 3, 4],
        "model_max_length": 8192,
    }
)


def refusals(model: Model, flags: EngineFlags, device: str = "") -> list[Refusal]:
    engine = Vllm()
    settings = engine.settle(model, flags, 80 * GIB, device)
    stages = engine.stages(model, settings)
    pool = engine.pool(model, settings, stages, [40 * GIB] * len(stages))
    return engine.refusals(model, settings, stages, pool)


def test_an_embedding_of_n_grams_cannot_be_split_over_pipeline_stages() -> None:
    one, two = EngineFlags(max_model_len=4096), EngineFlags(max_model_len=4096, pipeline_parallel_size=2)
    assert refusals(QWEN4, one) == []
    assert [refusal.code for refusal in refusals(QWEN4, two)] == ["pipeline_parallel_embedding"]
    plain = model_from_config({"model_type": "qwen4_exp_text", "num_hidden_layers": 8})
    assert refusals(plain, two) == []


def test_convolution_states_need_a_whole_kv_head_on_every_rank() -> None:
    assert refusals(INKLING, EngineFlags(max_model_len=4096, tensor_parallel_size=8)) == []
    with pytest.raises(UnsupportedError, match="8 KV heads cannot be divided by --tensor-parallel-size 16"):
        refusals(INKLING, EngineFlags(max_model_len=4096, tensor_parallel_size=16))


def test_windows_of_two_lengths_need_the_hybrid_manager() -> None:
    """v1/kv_cache_interface.py: FullAttentionSpec.merge_window_sizes."""
    found = refusals(INKLING, EngineFlags(max_model_len=4096, disable_hybrid_kv_cache_manager=True))
    told = next(refusal for refusal in found if refusal.code == "hybrid_manager_needed")
    assert "the same window size" in told.message
    assert "[4, 512]" in told.message


def test_recurrent_layers_need_the_hybrid_manager() -> None:
    found = refusals(QWEN35, EngineFlags(max_model_len=4096, disable_hybrid_kv_cache_manager=True))
    assert [refusal.message for refusal in found if refusal.code == "hybrid_manager_needed"] == [
        "ValueError: Failed to promote local KV cache specs to one unified type."
    ]


@pytest.mark.parametrize(
    ("model_type", "asked", "device", "named"),
    [
        ("minimax_m3_text", 64, "NVIDIA H100", 128),
        ("deepseek_v41", 32, "NVIDIA H100", 64),
        ("deepseek_v41", 64, "NVIDIA B200", 128),
    ],
)
def test_a_block_is_a_multiple_of_what_the_sparse_kernels_read(
    model_type: str, asked: int, device: str, named: int
) -> None:
    config: dict[str, object] = {"model_type": model_type}
    if model_type == "deepseek_v41":
        config |= {
            "hidden_size": 4096,
            "num_hidden_layers": 2,
            "num_attention_heads": 64,
            "head_dim": 512,
            "qk_rope_head_dim": 64,
            "sliding_window": 128,
            "index_head_dim": 128,
            "compress_ratios": [0, 1],
            "kv_source_layer_ids": [1],
            "index_source_layer_ids": [1],
            "vocab_size": 129280,
            "max_position_embeddings": 8192,
        }
    flags = EngineFlags(max_model_len=4096, block_size=asked)
    (refusal,) = refusals(model_from_config(config), flags, device)
    assert (refusal.code, refusal.fix) == ("block_size_unsupported", f"--block-size must be a multiple of {named}")
    assert refusals(model_from_config(config), flags._replace(block_size=named), device) == []


V4 = model_from_config({"model_type": "deepseek_v4", "compress_ratios": [0, 4, 128, 4], "num_hidden_layers": 4})


@pytest.mark.parametrize(
    ("asked", "words"),
    [(48, "ZeroDivisionError"), (64, "ZeroDivisionError"), (128, "No common block size for 128 ([256])"), (256, "")],
)
def test_a_block_that_holds_no_compressed_vector_is_refused(asked: int, words: str) -> None:
    found = refusals(V4, EngineFlags(max_model_len=4096, block_size=asked))
    assert [refusal.code for refusal in found] == (["block_size_unsupported"] if words else [])
    assert all(refusal.message.startswith(words) for refusal in found)


def test_windows_of_latents_need_the_hybrid_manager() -> None:
    found = refusals(V4, EngineFlags(max_model_len=4096, disable_hybrid_kv_cache_manager=True))
    assert [refusal.message for refusal in found if refusal.code == "hybrid_manager_needed"] == [
        "TypeError: MLAAttentionSpec.__init__() got an unexpected keyword argument 'bounded_replay'"
    ]


LLAMA = model_from_config(
    {"model_type": "llama", "num_hidden_layers": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072}
)
DRAFT = model_from_config(
    {
        "model_type": "llama",
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
    }
)


@pytest.mark.parametrize(("stages", "blocks"), [(1, 9830), (2, 19660), (3, 31457)])
def test_a_draft_model_has_its_last_part_on_the_last_stage_and_does_not_start_there(stages: int, blocks: int) -> None:
    """The blocks are those of vLLM 0.32's own code, which takes the layers of both models from the same stages."""
    engine = Vllm()
    flags = EngineFlags(
        max_model_len=8192, pipeline_parallel_size=stages, speculation=Speculation("draft_model", 3, DRAFT)
    )
    settings = engine.settle(LLAMA, flags, 0, "")
    found = engine.stages(LLAMA, settings)
    pool = engine.pool(LLAMA, settings, found, [24 * GIB] * stages)
    assert pool.num_blocks == blocks
    codes = [refusal.code for refusal in engine.refusals(LLAMA, settings, found, pool)]
    assert codes == ([] if stages == 1 else ["draft_model_pipeline"])


@pytest.mark.parametrize(("draft_ranks", "starts"), [(0, True), (1, True), (2, True), (7, False)])
def test_a_draft_runs_on_one_rank_or_on_all(draft_ranks: int, starts: bool) -> None:
    speculation = Speculation("eagle", 3, DRAFT, draft_tensor_parallel_size=draft_ranks)
    found = refusals(LLAMA, EngineFlags(max_model_len=4096, tensor_parallel_size=2, speculation=speculation))
    assert [refusal.code for refusal in found] == ([] if starts else ["draft_tensor_parallel"])


def test_a_length_that_config_json_does_not_limit_is_refused_by_no_class_default() -> None:
    for config in ({"model_type": "llama"}, {"model_type": "bloom"}):
        assert refusals(model_from_config(config), EngineFlags(max_model_len=8192)) == []
