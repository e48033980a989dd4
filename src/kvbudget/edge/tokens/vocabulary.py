"""Which tokenizer counts: fastokens where it proves equal to the reference at start, else the reference alone.

The reference is Hugging Face `tokenizers` on the same tokenizer.json; fastokens is about 20 times faster.
"""

import json
from pathlib import Path
from typing import Any

from fastokens import Tokenizer as FastTokenizer
from tokenizers import AddedToken, Tokenizer

from kvbudget.edge.tokens.count import TokenIds
from kvbudget.edge.tokens.selftest import first_difference
from kvbudget.errors import BadConfigError

# Bytes of one id in the flat buffers of fastokens.
_ID_BYTES = 4
_SHOWN_CHARS = 60


class Vocabulary:
    """A loaded tokenizer. `fast` tells whether fastokens counts; `notes` what the operator should know."""

    def __init__(self, reference: Tokenizer, fast: FastTokenizer | None, notes: tuple[str, ...]) -> None:
        self._reference = reference
        self._fast = fast
        self.notes = notes

    @property
    def fast(self) -> bool:
        """Whether fastokens does the counting."""
        return self._fast is not None

    @classmethod
    def load(cls, folder: Path, config: dict[str, object]) -> "Vocabulary":
        """From tokenizer.json and the added tokens of tokenizer_config.json. Raises BadConfigError.

        Takes a second or two for real vocabularies, most of it in building the tables.
        """
        file = folder / "tokenizer.json"
        try:
            reference = Tokenizer.from_file(str(file))
        except Exception as error:  # tokenizers raises bare Exception
            raise BadConfigError(f"{file} cannot be read as a tokenizer: {error}") from error
        reference.no_truncation()
        reference.no_padding()
        notes = []
        missing = _missing_tokens(reference, config)
        if missing:
            reference.add_tokens(missing)
            notes.append(f"{len(missing)} added tokens come from tokenizer_config.json alone")
        fast, note = _proved_fast(reference)
        return cls(reference, fast, (*notes, note))

    def encoded(self, text: str, *, special: bool) -> tuple[int, TokenIds]:
        """(how many tokens, their ids); `special`: with what the post-processor adds (BOS and the like). Releases the
        GIL."""
        if self._fast is not None:
            data, _ = self._fast.encode_batch_flat([text], special)
            return len(data) // _ID_BYTES, data
        ids = self._reference.encode_batch_fast([text], add_special_tokens=special)[0].ids
        return len(ids), ids

    def length(self, text: str, *, special: bool) -> int:
        """Tokens of `text`."""
        return self.encoded(text, special=special)[0]

    def reference_length(self, text: str, *, special: bool) -> int:
        """The same by the reference, for audits."""
        return len(self._reference.encode_batch_fast([text], add_special_tokens=special)[0].ids)


def _missing_tokens(reference: Tokenizer, config: dict[str, object]) -> list[AddedToken]:
    """transformers adds what `added_tokens_decoder` has beyond tokenizer.json, in the order of the ids."""
    listed = config.get("added_tokens_decoder")
    if not isinstance(listed, dict):
        return []
    known = {token.content for token in reference.get_added_tokens_decoder().values()}
    missing = []
    for key in sorted(listed, key=lambda key: int(key) if str(key).isdecimal() else 0):
        entry: dict[str, Any] = listed[key] if isinstance(listed[key], dict) else {}
        content = entry.get("content")
        if isinstance(content, str) and content and content not in known:
            flags = {
                name: bool(entry.get(name)) for name in ("lstrip", "rstrip", "normalized", "single_word", "special")
            }
            missing.append(AddedToken(content, **flags))
    return missing


def _proved_fast(reference: Tokenizer) -> tuple[FastTokenizer | None, str]:
    text = reference.to_str()
    try:
        fast = FastTokenizer.from_json_str(text)
    except Exception as error:
        return None, f"fastokens cannot load this tokenizer ({error}); Hugging Face tokenizers counts"
    added = [token["content"] for token in json.loads(text).get("added_tokens", [])]
    difference = first_difference(
        lambda text, special: reference.encode_batch_fast([text], add_special_tokens=special)[0].ids,
        lambda text, special: fast.encode(text, special).ids,
        added,
    )
    if difference is not None:
        shown = difference[:_SHOWN_CHARS]
        return None, f"fastokens differs from Hugging Face tokenizers on {shown!r}; Hugging Face tokenizers counts"
    return fast, "fastokens counts; it agrees with Hugging Face tokenizers on the self-test"
