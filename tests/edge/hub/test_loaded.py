"""What weight files take once they are loaded."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvbudget.edge.hub.folder import Checkpoint, read_checkpoint
from kvbudget.edge.hub.loaded import weights_beside
from kvbudget.edge.hub.safetensors import Tensors
from kvbudget.model.read import model_from_config
from kvbudget.planner.request import Amount

MIMO: dict[str, Any] = {
    "model_type": "mimo", "num_hidden_layers": 36, "num_nextn_predict_layers": 1, "hidden_size": 4096,
    "intermediate_size": 11008, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 151680,
}  # fmt: skip


def beside(folder: Path, index: dict[str, Any] | None) -> Amount | None:
    (folder / "config.json").write_text(json.dumps(MIMO))
    if index is not None:
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    checkpoint = read_checkpoint(str(folder))
    return weights_beside(checkpoint, model_from_config(checkpoint.config), 2)


def test_no_files_are_no_amount(tmp_path: Path) -> None:
    assert beside(tmp_path, None) is None


def test_an_index_alone_tells_the_whole(tmp_path: Path) -> None:
    found = beside(tmp_path, {"metadata": {"total_size": 15 * 10**9}, "weight_map": {"a": "m.safetensors"}})
    assert found is not None
    assert (found.bytes, found.source) == (15 * 10**9, "measured")


def test_a_draft_module_that_only_an_index_shows_is_taken_out_by_the_count(tmp_path: Path) -> None:
    names = {"model.layers.0.w": "m.safetensors", "model.mtp_layers.0.w": "m.safetensors"}
    found = beside(tmp_path, {"metadata": {"total_size": 15 * 10**9}, "weight_map": names})
    assert found is not None
    module = (2 * 4096 * 4096 + 4 * 4096 * 4096 - 2 * 4096 * 3072 + 3 * 4096 * 11008) / 7_600_000_000
    assert 0.95 * module < 1 - found.bytes / (15 * 10**9) < 1.1 * module


LLAMA: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip
QWEN: dict[str, Any] = {
    "model_type": "qwen3", "num_hidden_layers": 28, "hidden_size": 1024, "intermediate_size": 3072,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "tie_word_embeddings": True,
}  # fmt: skip
FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}


def doubted(config: dict[str, Any], tensors: Tensors, name: str = "m", source: str = "folder") -> str:
    checkpoint = Checkpoint(name, config, tensors, source)
    model = model_from_config(config, name)
    amount = weights_beside(checkpoint, model, 2)
    assert amount is not None
    return amount.doubt


@pytest.mark.parametrize(
    ("config", "tensors", "name"),
    [
        (LLAMA, Tensors({"BF16": 16_060_522_496}, 16_060_522_496, 4), "Llama-3.1-8B"),
        (LLAMA, Tensors({"F32": 2 * 16_060_522_496}, 2 * 16_060_522_496, 4), "in float32"),
        (LLAMA | FP8, Tensors({}, 9_081_000_000, 2), "Llama-3.1-8B-FP8"),
        (LLAMA, Tensors({"U8": 4_400_000_000, "BF16": 2_100_000_000}, 6_500_000_000, 2), "its own kind of four bits"),
        (LLAMA, Tensors({}, 6_500_000_000, 2), "Llama-3.1-8B-NVFP4"),
        (QWEN, Tensors({"BF16": 1_503_264_768}, 1_503_264_768, 1), "Qwen3-0.6B, whose tied head is stored too"),
    ],
)
def test_the_files_of_published_checkpoints_are_believed(config: dict[str, Any], tensors: Tensors, name: str) -> None:
    assert doubted(config, tensors, name) == ""


@pytest.mark.parametrize(
    ("tensors", "name", "word"),
    [
        (Tensors({"BF16": 200}, 200, 1), "m", "less"),
        (Tensors({}, 1, 1), "m", "less"),
        (Tensors({}, 1, 1), "m-NVFP4", "less"),
        (Tensors({"U8": 1000}, 1000, 1), "m", "less"),
        (Tensors({}, 2 * 16_060_522_496, 4), "m", "more"),
    ],
)
def test_files_that_cannot_be_the_weights_are_doubted(tensors: Tensors, name: str, word: str) -> None:
    assert f"far {word} than the 14.96 GiB" in doubted(LLAMA, tensors, name)


def test_a_draft_that_borrows_its_embedding_and_a_gguf_file_are_not_doubted() -> None:
    small = Checkpoint("m", LLAMA, Tensors({"BF16": 200}, 200, 1))
    draft = weights_beside(small, model_from_config(LLAMA), 2, own_embedding=False)
    assert draft is not None
    assert draft.note == "1 safetensors file(s)"
    assert doubted(LLAMA, Tensors({}, 200, 1), source="gguf") == ""
