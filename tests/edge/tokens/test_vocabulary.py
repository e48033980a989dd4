from pathlib import Path

import pytest
from tokenizers import Tokenizer

from kvbudget.edge.tokens import vocabulary
from kvbudget.edge.tokens.vocabulary import Vocabulary


@pytest.mark.parametrize(
    ("name", "told"), [("LlamaTokenizerFast", True), ("PreTrainedTokenizerFast", False), (None, False)]
)
def test_a_class_that_transformers_would_build_otherwise_is_told(folder: Path, name: str | None, told: bool) -> None:
    notes = Vocabulary.load(folder, {"tokenizer_class": name}).notes
    assert any("may read it otherwise" in note for note in notes) is told


def test_both_tokenizers_give_the_reference_length(folder: Path, reference: Tokenizer) -> None:
    loaded = Vocabulary.load(folder, {})
    assert loaded.fast
    for text in ("The pool", "<|im_end|>\n", "é" * 50, ""):
        for special in (False, True):
            expected = len(reference.encode(text, add_special_tokens=special).ids)
            assert loaded.length(text, special=special) == expected
            assert loaded.reference_length(text, special=special) == expected


def test_a_difference_at_start_leaves_the_reference_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "first_difference", lambda *_: "odd text")
    loaded = Vocabulary.load(folder, {})
    assert not loaded.fast
    assert any("'odd text'" in note for note in loaded.notes)
    assert loaded.length("<|im_end|>", special=False) == 1


def test_a_tokenizer_that_fastokens_cannot_load_leaves_the_reference_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unable:
        @staticmethod
        def from_json_str(_: str) -> None:
            raise ValueError("unknown model")

    monkeypatch.setattr(vocabulary, "FastTokenizer", Unable)
    loaded = Vocabulary.load(folder, {})
    assert not loaded.fast
    assert any("unknown model" in note for note in loaded.notes)


def test_truncation_and_padding_of_the_file_are_switched_off(reference: Tokenizer, tmp_path: Path) -> None:
    copy = Tokenizer.from_str(reference.to_str())
    copy.enable_truncation(3)
    copy.enable_padding(length=50)
    copy.save(str(tmp_path / "tokenizer.json"))
    loaded = Vocabulary.load(tmp_path, {})
    text = "the pool is what the engine has"
    assert loaded.length(text, special=False) == len(reference.encode(text, add_special_tokens=False).ids)


def test_added_tokens_of_the_configuration_alone_are_added(folder: Path) -> None:
    listed = {"900": {"content": "<|extra|>", "special": True}, "1": {"content": "<|im_start|>"}, "x": 5}
    loaded = Vocabulary.load(folder, {"added_tokens_decoder": listed})
    assert loaded.length("a<|extra|>", special=False) == 2
    assert loaded.reference_length("a<|extra|>", special=False) == 2
    assert any("1 added tokens" in note for note in loaded.notes)
