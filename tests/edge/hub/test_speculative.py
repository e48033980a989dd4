"""--speculative-config as vLLM takes it."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvbudget.edge.hub.speculative import speculation_of
from kvbudget.engines.flags import Speculation
from kvbudget.errors import InputError
from kvbudget.model.drafts import MedusaHeads


def test_a_method_without_a_model_reads_nothing() -> None:
    found, weights = speculation_of({"method": "ngram", "num_speculative_tokens": 4})
    assert (found.method, found.num_speculative_tokens, found.draft, weights) == ("ngram", 4, None, None)
    assert speculation_of({"model": "[ngram]", "num_speculative_tokens": 4})[0] == found
    assert speculation_of({"num_speculative_tokens": 1})[0].method == ""  # older vLLM takes the model's own module


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
        ({"model_type": "eagle", "model": {"model_type": "llama", "num_hidden_layers": 1}}, "draft_model", 1),
        ({"architectures": ["Qwen3DSparkModel"], "model_type": "qwen3", "num_hidden_layers": 1}, "dspark", 1),
        (
            {
                "speculators_model_type": "eagle3", "speculators_config": {},
                "transformer_layer_config": {"num_hidden_layers": 1},
            },
            "draft_model", 1,
        ),
    ],
)  # fmt: skip
def test_the_model_type_of_heads_says_their_method_and_that_of_others_does_not(
    tmp_path: Path, config: dict[str, Any], method: str, layers: int | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    found, _ = speculation_of({"model": str(tmp_path), "num_speculative_tokens": 3})
    assert (found.method, found.draft and len(found.draft.layers)) == (method, layers)


def test_an_old_medusa_draft_has_no_model_type(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"medusa_num_heads": 4}')
    given = {"method": "medusa", "model": str(tmp_path), "num_speculative_tokens": 3}
    found, weights = speculation_of(given)
    assert found.draft is None
    assert found.heads == MedusaHeads(4, 1, 4096, 0, shared=False, biased=False)
    assert weights is None


def test_files_of_medusa_are_measured(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "medusa", "num_heads": 4, "hidden_size": 64}')
    index = {"metadata": {"total_size": 10**6}, "weight_map": {"blocks.0.layers.0.weight": "model-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found, weights = speculation_of({"model": str(tmp_path), "num_speculative_tokens": 3})
    assert found.method == "medusa"
    assert weights is not None
    assert (weights.bytes, weights.source) == (10**6, "measured")


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        ({"method": "suffix"}, 24),
        ({"method": "suffix", "suffix_decoding_max_tree_depth": 8}, 8),
        ({"method": "suffix", "num_speculative_tokens": 5}, 5),
    ],
)
def test_suffix_decoding_has_a_depth_of_its_own(given: dict[str, Any], tokens: int) -> None:
    assert speculation_of(given)[0] == Speculation("suffix", tokens)


@pytest.mark.parametrize(
    ("config", "more", "tokens"),
    [
        ({"model_type": "deepseek_v3", "num_nextn_predict_layers": 2}, {"method": "mtp"}, 2),
        ({"model_type": "mlp_speculator", "n_predict": 3}, {}, 3),
        ({"model_type": "qwen3", "num_hidden_layers": 1, "block_size": 7}, {"method": "dspark"}, 7),
        ({"model_type": "qwen3", "num_hidden_layers": 1, "dspark_block_size": 5}, {"method": "dspark"}, 5),
        ({"model_type": "qwen3", "num_hidden_layers": 1}, {"method": "dspark"}, 0),
        ({"model_type": "qwen3", "num_hidden_layers": 1}, {}, 0),
        ({"model_type": "medusa", "num_heads": 4}, {}, 0),
    ],
)
def test_a_draft_may_say_its_tokens(tmp_path: Path, config: dict[str, Any], more: dict[str, Any], tokens: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    given = {"model": str(tmp_path), **more}
    if tokens:
        assert speculation_of(given)[0].num_speculative_tokens == tokens
        return
    with pytest.raises(InputError, match="A speculative model was provided, but `num_speculative_tokens` was not"):
        speculation_of(given)


def test_a_class_s_path_is_no_folder() -> None:
    found, weights = speculation_of({"model": "my.module.Proposer", "num_speculative_tokens": 3})
    assert found == Speculation("custom_class", 3, model="my.module.Proposer")
    assert weights is None
    assert speculation_of({"method": "custom_class", "model": "x", "num_speculative_tokens": 3})[0].model == "x"
    with pytest.raises(InputError, match="does not exist"):
        speculation_of({"model": "Qwen2.5-0.5B", "num_speculative_tokens": 3})


def test_another_vocabulary_may_be_allowed() -> None:
    given = {"method": "ngram", "num_speculative_tokens": 3}
    assert speculation_of({**given, "use_heterogeneous_vocab": True})[0].any_vocabulary
    assert not speculation_of({**given, "use_heterogeneous_vocab": None})[0].any_vocabulary
    with pytest.raises(InputError, match="use_heterogeneous_vocab is 'yes'"):
        speculation_of({**given, "use_heterogeneous_vocab": "yes"})


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
        {"method": "ngram"},
        {"method": "custom_class"},
        {"method": "suffix", "suffix_decoding_max_tree_depth": 0},
        {"num_speculative_tokens": 3, "model": "x" * 5000},
    ],
)
def test_what_is_none_is_named_with_a_way_out(given: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        speculation_of(given)
    assert caught.value.fix
