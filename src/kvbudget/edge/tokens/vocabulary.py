"""Which tokenizer counts: fastokens where it proves equal to the reference at start, else the reference alone.

The reference is Hugging Face `tokenizers` on the same tokenizer.json; fastokens is about 20 times faster.
"""

import json
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastokens import Tokenizer as FastTokenizer
from tokenizers import AddedToken, Tokenizer

from kvbudget.edge.tokens.count import TokenIds
from kvbudget.edge.tokens.least import LowerBound, lower_bound_of
from kvbudget.edge.tokens.rendering import Piece
from kvbudget.edge.tokens.selftest import first_difference
from kvbudget.errors import BadConfigError

# Bytes of one id in the flat buffers of fastokens.
_ID_BYTES = 4
_SHOWN_CHARS = 60
# Bytes of text and ids that fastokens keeps of the segments between added tokens: system prompts, tools and earlier
# turns come again with every request. It holds the text itself and compares it, so that no made-up text can pass for
# another, and gives up what was not used for longest.
SEGMENT_CACHE_BYTES = 64 * 1024 * 1024


class Vocabulary:
    """A loaded tokenizer. `fast` tells whether fastokens counts; `notes` what the operator should know."""

    def __init__(
        self,
        reference: Tokenizer,
        fast: FastTokenizer | None,
        notes: tuple[str, ...],
        shortest: LowerBound | None = None,
    ) -> None:
        self._reference = reference
        self._fast = fast
        self._shortest = shortest
        self._reference_plain: Tokenizer | None = None
        self._controls: dict[str, bytes] = {}
        self.notes = notes

    @property
    def fast(self) -> bool:
        """Whether fastokens does the counting."""
        return self._fast is not None

    @classmethod
    def load(
        cls, folder: Path, config: dict[str, object], *, segment_cache_bytes: int = SEGMENT_CACHE_BYTES
    ) -> "Vocabulary":
        """From tokenizer.json and the added tokens of tokenizer_config.json. Raises BadConfigError.

        Takes a second or two for real vocabularies (Gemma 3: eight), most of it in building the tables.
        `segment_cache_bytes` 0: no segment cache.
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
        text = reference.to_str()
        layout = json.loads(text)
        notes += _doubts(config, layout)
        fast, note = _proved_fast(reference, text, layout, segment_cache_bytes)
        return cls(reference, fast, (*notes, note), lower_bound_of(layout))

    def least(self, text: str) -> int:
        """Tokens that `text` has at the least, from its length alone; 0 when nothing can be said."""
        return 0 if self._shortest is None else self._shortest.of(text)

    def encoded(self, text: str, *, special: bool) -> tuple[int, TokenIds]:
        """(how many tokens, their ids); `special`: with what the post-processor adds (BOS and the like). Releases the
        GIL."""
        if self._fast is not None:
            data, _ = self._fast.encode_batch_flat([text], special)
            return len(data) // _ID_BYTES, data
        ids = self._reference.encode_batch_fast([text], add_special_tokens=special)[0].ids
        return len(ids), ids

    def encoded_pieces(self, pieces: Sequence[Piece]) -> tuple[int, TokenIds]:
        """The same for a prompt in pieces: control tokens by their ids, the texts between them without any.

        Raises KeyError for a control token that is not in the vocabulary.
        """
        controls = [self._control(piece.control) if piece.control else b"" for piece in pieces]
        texts = [piece.text for piece in pieces]
        ids: list[bytes] = []
        if self._fast is None:
            encodings = self._plain().encode_batch_fast(texts, add_special_tokens=False)
            for control, encoding in zip(controls, encodings, strict=True):
                ids += [control, array("I", encoding.ids).tobytes()]
        else:
            data, ends = self._fast.encode_batch_flat(texts, False, True)
            offsets = array("Q", ends)
            for index, control in enumerate(controls):
                ids += [control, data[offsets[index] * _ID_BYTES : offsets[index + 1] * _ID_BYTES]]
        joined = b"".join(ids)
        return len(joined) // _ID_BYTES, joined

    def _control(self, token: str) -> bytes:
        known = self._controls.get(token)
        if known is None:
            number = self._reference.token_to_id(token)
            if number is None:
                raise KeyError(token)
            known = self._controls[token] = array("I", [number]).tobytes()
        return known

    def _plain(self) -> Tokenizer:
        """The reference that takes control tokens for text."""
        if self._reference_plain is None:
            plain = Tokenizer.from_str(self._reference.to_str())
            plain.encode_special_tokens = True
            self._reference_plain = plain
        return self._reference_plain

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


def _doubts(config: dict[str, object], layout: dict[str, Any]) -> list[str]:
    """transformers 5 builds Llama's tokenizer anew by its class, whatever splits tokenizer.json has; except for
    model types that it lists (deepseek_v3 and others)."""
    llama = config.get("tokenizer_class") in ("LlamaTokenizer", "LlamaTokenizerFast")
    kind = (layout.get("pre_tokenizer") or {}).get("type")
    if not llama or kind in (None, "Metaspace"):
        return []
    return [
        f"tokenizer_config.json names {config['tokenizer_class']}, and tokenizer.json is none of Llama's: with "
        "transformers 5 an engine may read it otherwise. kvbudget_token_drift_total tells"
    ]


def _proved_fast(
    reference: Tokenizer, text: str, layout: dict[str, Any], segment_cache_bytes: int
) -> tuple[FastTokenizer | None, str]:
    try:
        fast = FastTokenizer.from_json_str(text)
    except Exception as error:
        return None, f"fastokens cannot load this tokenizer ({error}); Hugging Face tokenizers counts"
    fast.enable_segment_cache(segment_cache_bytes)  # before the self-test, which repeats segments
    difference = first_difference(
        lambda text, special: reference.encode_batch_fast([text], add_special_tokens=special)[0].ids,
        lambda text, special: fast.encode(text, special).ids,
        [token["content"] for token in layout.get("added_tokens", [])],
    )
    if difference is not None:
        shown = difference[:_SHOWN_CHARS]
        return None, f"fastokens differs from Hugging Face tokenizers on {shown!r}; Hugging Face tokenizers counts"
    return fast, "fastokens counts; it agrees with Hugging Face tokenizers on the self-test"
