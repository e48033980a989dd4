"""How few tokens a text can have at the least: its length over that of the longest token. Far too few, but proved.

Text that is too long whatever it says is refused by it before it is tokenized. No bound is given where something in
the tokenizer can swallow text without a token for it: unknown normalisers and pre-tokenizers, models without bytes.
"""

from typing import Any, NamedTuple

# NFC shortens UTF-8 by 3.5 at the most (U+1FBE U+0308 U+0341: 7 bytes become 2); ASCII alone it does not change.
NFC_SHRINKING = 4
_SPACE = "▁"
_BYTES = frozenset(f"<0x{byte:02X}>" for byte in range(256))
_KEEPING = frozenset(("ByteLevel", "Digits"))  # pre-tokenizers that drop nothing


class LowerBound(NamedTuple):
    """`longest`: most bytes of normalised text for one token; `shrinking`: how far that form can be shorter."""

    longest: int
    shrinking: int

    def of(self, text: str) -> int:
        """Tokens of `text` at the least."""
        # As many bytes as characters at the least: no need to encode.
        return -(-len(text) // (self.longest * (1 if text.isascii() else self.shrinking)))


def lower_bound_of(layout: dict[str, Any]) -> LowerBound | None:
    """From a parsed tokenizer.json; None when no bound is proved for such a tokenizer."""
    model = layout.get("model", {})
    vocab = model.get("vocab")
    if model.get("type") != "BPE" or not isinstance(vocab, dict) or not vocab:
        return None
    added = layout.get("added_tokens") or []
    if any(token.get("lstrip") or token.get("rstrip") for token in added):
        return None  # takes any number of blanks with it
    shrinking = _shrinking(layout.get("normalizer"))
    if shrinking is None or not _keeps(layout.get("pre_tokenizer")):
        return None
    if _has_byte_level(layout.get("pre_tokenizer")):
        longest = max(map(len, vocab))  # one letter stands for one byte
    elif model.get("byte_fallback") and vocab.keys() >= _BYTES:
        # A blank of the text is one byte and three as SentencePiece's sign for it.
        longest = max(len(piece.replace(_SPACE, " ").encode()) for piece in vocab)
    else:
        return None
    written = [len(str(token.get("content", "")).encode()) for token in added]
    return LowerBound(max([longest, *written]), shrinking)


def _shrinking(normalizer: Any) -> int | None:
    """By how much the normaliser can shorten text; None: no telling."""
    if normalizer is None:
        return 1
    kind = normalizer.get("type")
    if kind == "Sequence":
        total = 1
        for each in normalizer.get("normalizers", []):
            one = _shrinking(each)
            if one is None:
                return None
            total *= one
        return total
    if kind == "NFC":
        return NFC_SHRINKING
    blanks = kind == "Replace" and normalizer.get("pattern") == {"String": " "} and normalizer.get("content") == _SPACE
    return 1 if blanks or kind == "Prepend" else None


def _keeps(pre_tokenizer: Any) -> bool:
    if pre_tokenizer is None:
        return True
    kind = pre_tokenizer.get("type")
    if kind == "Sequence":
        return all(_keeps(each) for each in pre_tokenizer.get("pretokenizers", []))
    return kind in _KEEPING or (kind == "Split" and pre_tokenizer.get("behavior") != "Removed")


def _has_byte_level(pre_tokenizer: Any) -> bool:
    if pre_tokenizer is None:
        return False
    parts = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    return any(part.get("type") == "ByteLevel" for part in parts)
