import sys
import unicodedata
from typing import Any

import pytest

from kvbudget.edge.tokens.least import NFC_SHRINKING, LowerBound, lower_bound_of

BYTES = {f"<0x{byte:02X}>": byte for byte in range(256)}
BYTE_LEVEL = {"type": "ByteLevel"}
SPLIT = {"type": "Split", "pattern": {"String": " "}, "behavior": "Isolated"}


def _layout(**members: Any) -> dict[str, Any]:
    model = {"type": "BPE", "vocab": {"a": 0, "aaaa": 1}}
    return {"model": model, "pre_tokenizer": BYTE_LEVEL, "normalizer": None, "added_tokens": [], **members}


def test_a_text_has_as_many_tokens_as_its_length_over_that_of_the_longest() -> None:
    assert lower_bound_of(_layout()) == LowerBound(4, 1)
    bound = LowerBound(4, 3)
    assert [bound.of(text) for text in ("", "a", "aaaa", "aaaaa", "é" * 24)] == [0, 1, 1, 2, 2]


def test_added_tokens_and_blanks_of_sentencepiece_count_as_what_they_stand_for() -> None:
    assert lower_bound_of(_layout(added_tokens=[{"content": "<|begin|>"}])) == LowerBound(9, 1)
    model = {"type": "BPE", "byte_fallback": True, "vocab": {**BYTES, "▁▁▁▁▁▁▁▁": 300}}
    blanks = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    normalizer = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, blanks]}
    assert lower_bound_of(_layout(model=model, normalizer=normalizer, pre_tokenizer=None)) == LowerBound(8, 1)


@pytest.mark.parametrize(
    "members",
    [
        {"model": {"type": "Unigram", "vocab": []}},
        {"model": {"type": "BPE", "vocab": {}}},
        {"normalizer": {"type": "NFKC"}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Strip"}]}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": ""}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{**SPLIT, "behavior": "Removed"}, BYTE_LEVEL]}},
        {"pre_tokenizer": None},
        {"pre_tokenizer": SPLIT},
        {"model": {"type": "BPE", "byte_fallback": True, "vocab": {"a": 0}}, "pre_tokenizer": None},
        {"added_tokens": [{"content": "<x>", "lstrip": True}]},
        {"added_tokens": [{"content": "<x>", "rstrip": True}]},
        {"model": {}},
    ],
)
def test_where_text_may_vanish_nothing_is_promised(members: dict[str, Any]) -> None:
    assert lower_bound_of(_layout(**members)) is None


def test_nfc_shortens_no_text_by_more_than_is_allowed_for() -> None:
    assert lower_bound_of(_layout(normalizer={"type": "NFC"})) == LowerBound(4, NFC_SHRINKING)
    singles: dict[str, str] = {}  # what alone becomes the key: U+2126 for Omega
    letters = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    for letter in letters:
        normal = unicodedata.normalize("NFC", letter)
        if len(normal) == 1 and normal != letter and len(letter.encode()) > len(singles.get(normal, "").encode()):
            singles[normal] = letter
    for letter in letters:
        long = "".join(singles.get(part, part) for part in unicodedata.normalize("NFD", letter))
        normal = unicodedata.normalize("NFC", long)
        assert len(long.encode()) <= NFC_SHRINKING * len(normal.encode()), hex(ord(letter))
