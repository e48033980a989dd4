"""`kvbudget gpus` as a person calls it."""

import argparse
import json

import pytest

from kvbudget.cli import gpus
from kvbudget.errors import UnsupportedError
from kvbudget.planner.hardware.gpus import GPUS


def call(*words: str) -> int:
    parser = argparse.ArgumentParser()
    gpus.add_arguments(parser)
    return gpus.run(parser.parse_args(words))


def test_it_lists_every_card_with_its_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert call() == 0
    shown = capsys.readouterr().out
    assert all(key in shown for key in GPUS)
    assert "79.19" in shown


def test_json_is_one_document_with_bytes_and_where_they_come_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "kvbudget.gpus/1"
    h100 = next(gpu for gpu in document["gpus"] if gpu["key"] == "h100-80gb")
    assert h100["memory"]["source"] == "measured"
    assert h100["memory"]["low_bytes"] < h100["memory"]["bytes"] < h100["memory"]["high_bytes"]
    assert "3g.40gb" in h100["slices"]


def test_a_word_narrows_it_and_shows_slices(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("h100-nvl") == 0
    shown = capsys.readouterr().out
    assert "h100-nvl:1g.12gb" in shown
    assert "rtx-4090" not in shown


def test_another_spelling_finds_its_card(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("NVIDIA GeForce RTX 4090") == 0
    assert "rtx-4090" in capsys.readouterr().out


def test_an_unknown_word_names_near_cards() -> None:
    with pytest.raises(UnsupportedError, match="rtx-4090"):
        call("rtx-4097")
