"""What weight files take once they are loaded."""

import json
from pathlib import Path
from typing import Any

from kvbudget.edge.hub.folder import read_checkpoint
from kvbudget.edge.hub.loaded import weights_beside
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
