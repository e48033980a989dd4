"""Whether two tokenizers built from one tokenizer.json agree: several hundred strings chosen to make them differ.

Built from the tokenizer's own added tokens (whole, cut, doubled, in other case, glued to text) and from what splits
tokenizers apart: runs of one character, Unicode at its edges, all normal forms, digits, contractions, line ends.
"""

import random
import unicodedata
from collections.abc import Callable, Sequence

Encode = Callable[[str, bool], Sequence[int]]

# Added tokens that are tried; DeepSeek V3 has 818, Gemma 3 has 6,415.
MAX_ADDED_TOKENS = 48
RANDOM_STRINGS = 120
_SEED = 20
_WORDS = (
    "The quick brown fox", "it's we'll I'd CAN'T", "naïve café Ångström", "你好，世界。", "こんにちは", "안녕하세요",
    "مرحبا بالعالم", "नमस्ते दुनिया", "สวัสดี", "Привет", "🙂👍🏽👨‍👩‍👧‍👦🇩🇪", "1234567890", "3.14159e-10", "0x1F4A9",
    "def f(x):\n    return x ** 2\n", '{"a": [1, 2, {"b": null}]}', "https://example.org/a?b=c&d=%20#e",
    "<|x|>", "</s><s>",
)  # fmt: skip
_EDGES = (
    "", " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u200b", "\u200d", "\ufeff", "\u2028", "\x00", "\x1f", "\x7f",
    "\ufffd", "\u0301", "e\u0301", "\u1e9b\u0323", "\u0344", "\ufb2c", "\ufb01", "\uac00", "\u1100\u1161", "\U0001d160",
    "\U0010ffff", "\U000e0001", "▁", "▁▁", "Ġ", "Ċ", "##", "İı", "ß", "ﬀ", "½", "²", "Ⅷ", "٣", "१",
)  # fmt: skip
_RUNS = (1, 2, 3, 7, 64, 500)
_ALPHABETS = (
    (0x20, 0x7E), (0x00, 0xFF), (0x300, 0x36F), (0x370, 0x5FF), (0x600, 0x6FF), (0x900, 0xDFF), (0x1100, 0x11FF),
    (0x2000, 0x2BFF), (0x3040, 0x9FFF), (0xAC00, 0xD7A3), (0xE000, 0xFFFD), (0x10000, 0x1FFFF),
)  # fmt: skip


def first_difference(reference: Encode, other: Encode, added_tokens: Sequence[str]) -> str | None:
    """A string on which the two give other ids, with and without special tokens; None when all agree.

    An exception in `other` counts as a difference.
    """
    for text in self_test_strings(added_tokens):
        for special in (False, True):
            expected = reference(text, special)
            try:
                agrees = list(other(text, special)) == list(expected)
            except Exception:
                agrees = False
            if not agrees:
                return text
    return None


def self_test_strings(added_tokens: Sequence[str]) -> list[str]:
    """The same strings for the same added tokens, whenever and wherever it runs."""
    chance = random.Random(_SEED)  # noqa: S311 - repeatable on purpose
    chosen = sorted(set(added_tokens))
    if len(chosen) > MAX_ADDED_TOKENS:
        chosen = chance.sample(chosen, MAX_ADDED_TOKENS)
    strings = [*_WORDS, *_EDGES]
    for token in chosen:
        strings += [
            token, f" {token} ", f"a{token}b", f"{token}{token}", f"{token}\n{token.upper()}", token[:-1], token[1:],
            f"<{token}>", f"1{token}2", f"é{token}é",
        ]  # fmt: skip
    strings += [char * times for char in (" ", "\n", "a", "=", "7", "é", "字", "🙂", "\t", "\u0301") for times in _RUNS]
    strings += [unicodedata.normalize(form, "".join(_WORDS)) for form in ("NFC", "NFD", "NFKC", "NFKD")]
    pieces = [*_WORDS, *_EDGES, *chosen]
    for _ in range(RANDOM_STRINGS):
        low, high = chance.choice(_ALPHABETS)
        letters = "".join(chr(chance.randint(low, high)) for _ in range(chance.randint(1, 40)))
        strings.append(letters + chance.choice(pieces) + chance.choice((" ", "", "\n")) + chance.choice(pieces))
    return strings
