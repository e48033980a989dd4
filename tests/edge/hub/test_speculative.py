"""--speculative-config as vLLM takes it."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvbudget.edge.hub.speculative import speculation_of
from kvbudget.errors import InputError


def test_a_method_without_a_model_reads_nothing() -> None:
    found, weights = speculation_of({"method": "ngram", "num_speculative_tokens": 4})
    assert (found.method, found.num_speculative_tokens, found.draft, weights) == ("ngram", 4, None, None)
    assert speculation_of({"model": "[ngram]", "num_speculative_tokens": 4})[0] == found
    assert speculation_of({"num_speculative_tokens": 1})[0].method == "mtp"


def test_a_draft_is_read_from_its_folder_and_its_files_are_measured(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 1}')
    given = {"model": str(tmp_path), "num_speculative_tokens": 3}
    found, weights = speculation_of(given)
    assert found.method == "draft_model"
    assert found.draft is not None
    assert (len(found.draft.layers), weights) == (1, None)
    index = {"metadata": {"total_size": 10**9}, "weight_map": {"a": "model-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    weights = speculation_of(given)[1]
    assert weights is not None
    assert (weights.bytes, weights.source) == (10**9, "measured")


@pytest.mark.parametrize(
    ("config", "method", "layers"),
    [
        ({"model_type": "medusa", "num_heads": 4, "num_hidden_layers": 1}, "medusa", None),
        ({"model_type": "mlp_speculator", "n_predict": 3}, "mlp_speculator", None),
        ({"model_type": "eagle", "model": {"model_type": "llama", "num_hidden_layers": 1}}, "eagle", 1),
        (
            {
                "speculators_model_type": "eagle3", "speculators_config": {},
                "transformer_layer_config": {"num_hidden_layers": 1},
            },
            "eagle3", 1,
        ),
    ],
)  # fmt: skip
def test_the_file_of_a_draft_says_its_method(
    tmp_path: Path, config: dict[str, Any], method: str, layers: int | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    found, _ = speculation_of({"model": str(tmp_path), "num_speculative_tokens": 3})
    assert (found.method, found.draft and len(found.draft.layers)) == (method, layers)


def test_an_old_medusa_draft_has_no_model_type(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"medusa_num_heads": 4}')
    given = {"method": "medusa", "model": str(tmp_path), "num_speculative_tokens": 3}
    assert speculation_of(given)[0].draft is None


@pytest.mark.parametrize(
    ("name", "method"), [("EAGLE-LLaMA3", "eagle"), ("Qwen3-8B_eagle3", "eagle3"), ("x", "draft_model")]
)
def test_a_draft_s_name_may_say_its_method(tmp_path: Path, name: str, method: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 1}')
    assert speculation_of({"model": str(folder), "num_speculative_tokens": 3})[0].method == method


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"method": "mtp"},
        {"num_speculative_tokens": 0},
        {"num_speculative_tokens": True},
        {"num_speculative_tokens": "3"},
        {"num_speculative_tokens": 10**9},
        {"num_speculative_tokens": 3, "model": 7},
        {"num_speculative_tokens": 3, "method": ["eagle"]},
        {"num_speculative_tokens": 3, "model": "./nowhere"},
    ],
)
def test_what_is_none_is_named_with_a_way_out(given: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        speculation_of(given)
    assert caught.value.fix
