"""`kvbudget models` as a person calls it."""

import argparse
import json

import pytest

from kvbudget.cli import models
from kvbudget.errors import UnsupportedError
from kvbudget.model.families.multimodal import WRAPPERS
from kvbudget.model.families.table import FAMILIES


def call(*words: str) -> int:
    parser = argparse.ArgumentParser()
    models.add_arguments(parser)
    return models.run(parser.parse_args(words))


def test_it_lists_every_architecture_and_wrapper(capsys: pytest.CaptureFixture[str]) -> None:
    assert call() == 0
    shown = capsys.readouterr().out.split()
    assert set(FAMILIES) <= set(shown)
    assert set(WRAPPERS) <= set(shown)


def test_json_tells_the_kinds_of_cache_of_class_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "kvbudget.models/1"
    kinds = {model["model_type"]: model["kinds"] for model in document["models"]}
    assert kinds["llama"] == {"full": 32}
    assert set(kinds["gemma2"]) == {"sliding", "full"}
    assert {"model_type": "qwen3_vl", "text": WRAPPERS["qwen3_vl"]} in document["wrappers"]


def test_a_word_narrows_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("gemma3") == 0
    shown = capsys.readouterr().out
    assert "gemma3" in shown
    assert "llama" not in shown


def test_an_unknown_word_names_near_ones() -> None:
    with pytest.raises(UnsupportedError, match="llama"):
        call("lllama9")
