"""Formats of speculative drafts."""

from typing import Any

import pytest

from kvbudget.errors import InputError
from kvbudget.model.drafts import MedusaHeads, draft_inside, medusa_heads, speculators_of
from kvbudget.model.read import model_from_config

LAYER = {"num_hidden_layers": 1, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
SPECULATORS = {
    "speculators_model_type": "eagle3",
    "transformer_layer_config": LAYER,
    "speculators_config": {
        "proposal_methods": [{"speculative_tokens": 3}],
        "verifier": {"name_or_path": "org/model"},
    },
}


def test_a_plain_config_is_the_draft_itself() -> None:
    config = {"model_type": "llama"}
    assert draft_inside(config) == (config, "")
    assert speculators_of(config) is None


def test_the_speculators_format_holds_a_layer() -> None:
    """What it was made for counts where it is served itself; as a draft its path must say it (speculative.py)."""
    found = draft_inside(SPECULATORS)
    assert tuple(found) == ({"model_type": "llama", **LAYER}, "")
    assert len(model_from_config(found.config).layers) == 1
    assert speculators_of(SPECULATORS) == ("org/model", "eagle3", 3)


@pytest.mark.parametrize(("algorithm", "method"), [("peagle", "eagle3"), ("dflash2", "dflash"), ("dspark", "dspark")])
def test_algorithms_become_methods(algorithm: str, method: str) -> None:
    found = speculators_of({**SPECULATORS, "speculators_model_type": algorithm})
    assert found is not None
    assert found.method == method


def test_what_stands_beside_an_eagle_s_model_replaces_what_is_in_it() -> None:
    config = {"model_type": "eagle", "architectures": ["EagleModel"], "model": {"model_type": "llama", **LAYER}}
    found = draft_inside({**config, "num_key_value_heads": 4, "truncated_vocab_size": 5, "method": "eagle3"})
    assert found == ({"model_type": "llama", **LAYER, "num_key_value_heads": 4}, "")


@pytest.mark.parametrize("model_type", ["medusa", "mlp_speculator"])
def test_heads_alone_keep_no_cache(model_type: str) -> None:
    assert draft_inside({"model_type": model_type, "num_heads": 4}) == (None, model_type)


def test_medusa_s_heads_are_blocks_and_output_heads() -> None:
    """vLLM 0.32 models/medusa.py: the blocks are whole on every rank, the output heads are split."""
    found = medusa_heads({"num_heads": 5, "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 1000}, named=False)
    assert found == MedusaHeads(5, 2, 64, 1000, shared=False, biased=False)
    assert found.parameters(3, 9) == (3 * 2 * 64 * 64, 3 * 1024 * 64)  # the vocabulary is padded to 1,024
    assert found._replace(shared=True, biased=True).parameters(3, 9) == (3 * 2 * (64 * 64 + 64), 1024 * 64)


def test_old_medusa_files_say_little() -> None:
    """configs/medusa.py renames their keys; a method that is given takes the target's vocabulary."""
    found = medusa_heads({"medusa_num_heads": 4, "medusa_num_layers": 1}, named=True)
    assert found == MedusaHeads(4, 1, 4096, 0, shared=False, biased=False)
    assert found.parameters(1, 128) == (4096 * 4096, 128 * 4096)
    shared = {"original_lm_head": True, "vocab_size": 1000, "truncated_vocab_size": 128, "hidden_size": 64}
    assert medusa_heads(shared, named=False) == MedusaHeads(5, 1, 64, 128, shared=True, biased=False)


@pytest.mark.parametrize("value", [0, -1, "5", None, True, 10**12])
def test_sizes_of_medusa_are_whole_numbers(value: object) -> None:
    for key in ("num_heads", "hidden_size", "vocab_size"):
        with pytest.raises(InputError, match=key):
            medusa_heads({key: value}, named=False)


@pytest.mark.parametrize(
    "broken",
    [
        {"speculators_model_type": None}, {"speculators_model_type": "hass"}, {"speculators_model_type": []},
        {"transformer_layer_config": None}, {"transformer_layer_config": 5}, {"speculators_config": 5},
        {"speculators_config": {}}, {"speculators_config": {"verifier": {"name_or_path": "x"}}},
        {"speculators_config": {"verifier": {"name_or_path": 5}, "proposal_methods": []}},
        {"model_type": "eagle"}, {"model_type": "eagle", "model": []},
    ],
)  # fmt: skip
def test_damaged_wrappers_are_input_errors(broken: dict[str, Any]) -> None:
    config = {**SPECULATORS, **broken}
    with pytest.raises(InputError):  # noqa: PT012 # whichever of them reads the damaged part
        draft_inside(config)
        speculators_of(config)


def test_a_draft_named_as_the_model_says_what_is_served_with_it() -> None:
    with pytest.raises(InputError, match="with which vLLM serves org/model") as caught:
        model_from_config(SPECULATORS)
    assert '"method": "eagle3", "num_speculative_tokens": 3' in str(caught.value.fix)
