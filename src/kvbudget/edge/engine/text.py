"""Decides what a token is in the embedded engine, and what its answers say.

The rule, shared by `usage`, `/tokenize` and the length checks:

- a text has one token per started 4 bytes of its UTF-8 form;
- a chat has, per message, 4 tokens of framing plus the tokens of its role and of its content (and of its tool calls,
  as compact JSON), plus 3 tokens that open the answer, plus the tokens of `tools` as compact JSON if there are any;
- a prompt given as token ids has as many tokens as ids.

The id of a token is the big-endian number of its bytes, behind all ids of shorter tokens, so ids name their bytes
exactly; framing tokens lie above `VOCABULARY`.

Each output token is a text of exactly 4 bytes, so an answer of k tokens counts k tokens again when it comes back as
part of a prompt. Which texts, and after how many tokens the answer would end by itself, follows from a hash of prompt,
seed and choice alone: the same request always gets the same answer. The token that ends an answer by itself (reason
`stop`) is counted and has no text, as an end-of-sequence token.
"""

from dataclasses import dataclass
from hashlib import blake2b

import orjson

TOKEN_BYTES = 4
# First id of the tokens of 1, 2, 3 and 4 bytes, and the first id above them.
_FIRST_ID = (0, 256, 256 + 256**2, 256 + 256**2 + 256**3)
VOCABULARY = _FIRST_ID[3] + 256**4
_MESSAGE_FRAME = tuple(range(VOCABULARY, VOCABULARY + 4))
_ANSWER_FRAME = tuple(range(VOCABULARY + 4, VOCABULARY + 7))

_SYLLABLES = tuple(" " + c + v + e for c in "bdfghklmnprstvz" for v in "aeiou" for e in "nrs")
# 4 bytes each, so that answers hold 2, 3 and 4 byte characters now and then: a relay must not cut or re-encode them.
_WIDE = (" né", " ça", " üb", " ñu", " €", "日 ", "本 ", "語 ", "한 ", "😀", "🚀", "– ", "éé", "жы", "дa,")
_PIECES = tuple(piece.encode() for piece in (*_SYLLABLES, ". He", ", an", "; it", ": so", *_WIDE))
# Knuth's MMIX generator: one multiplication per token, its high bits choose the piece.
_MULTIPLIER, _INCREMENT, _MASK = 6364136223846793005, 1442695040888963407, 2**64 - 1


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: its length in tokens and the bytes that its answer is derived from."""

    tokens: int
    content: bytes


def count_text(text: str) -> int:
    """Tokens of a text."""
    return -(-len(text.encode()) // TOKEN_BYTES)


def text_ids(text: str) -> list[int]:
    """Token ids of a text; as many as `count_text` says."""
    data = text.encode()
    return [_token_id(data[at : at + TOKEN_BYTES]) for at in range(0, len(data), TOKEN_BYTES)]


def id_bytes(token_id: int) -> bytes:
    """The bytes that a token id names; empty for framing tokens. Raises ValueError outside of the vocabulary."""
    if token_id < 0 or token_id > _ANSWER_FRAME[-1]:
        raise ValueError(token_id)
    for length in (4, 3, 2, 1):
        if token_id >= VOCABULARY:
            return b""
        if token_id >= _FIRST_ID[length - 1]:
            return (token_id - _FIRST_ID[length - 1]).to_bytes(length, "big")
    raise AssertionError  # pragma: no cover - every id is at least _FIRST_ID[0]


def count_chat(messages: list[tuple[str, str]], tools: bytes) -> int:
    """Tokens of a chat: (role, content) pairs, and the tools as compact JSON (empty if there are none)."""
    framed = sum(len(_MESSAGE_FRAME) + count_text(role) + count_text(content) for role, content in messages)
    return framed + len(_ANSWER_FRAME) + count_text(tools.decode())


def chat_ids(messages: list[tuple[str, str]], tools: bytes) -> list[int]:
    """Token ids of a chat; as many as `count_chat` says."""
    ids = text_ids(tools.decode())
    for role, content in messages:
        ids += [*_MESSAGE_FRAME, *text_ids(role), *text_ids(content)]
    return [*ids, *_ANSWER_FRAME]


def text_prompt(text: str) -> Prompt:
    """A prompt of plain text."""
    return Prompt(count_text(text), text.encode())


def ids_prompt(ids: list[int]) -> Prompt:
    """A prompt of token ids; the same answer as for the text that they name."""
    return Prompt(len(ids), b"".join(map(id_bytes, ids)))


def chat_prompt(messages: list[tuple[str, str]], tools: bytes) -> Prompt:
    """A prompt of chat messages."""
    return Prompt(count_chat(messages, tools), orjson.dumps(messages) + tools)


class Answer:
    """The endless text of one choice, token by token."""

    __slots__ = ("_state", "natural_tokens")

    def __init__(self, prompt: Prompt, seed: int | None, choice: int, mean_tokens: int) -> None:
        """`natural_tokens`: after how many it ends by itself, 1 to 2 * `mean_tokens` - 1, the same chance for each."""
        digest = blake2b(prompt.content, digest_size=16, key=b"%d" % choice, person=_person(seed)).digest()
        self._state = int.from_bytes(digest[:8], "big")
        self.natural_tokens = 1 + int.from_bytes(digest[8:], "big") % (2 * mean_tokens - 1)

    def next_piece(self) -> bytes:
        """UTF-8 of the next token, exactly 4 bytes, nothing in it that JSON would escape."""
        self._state = (self._state * _MULTIPLIER + _INCREMENT) & _MASK
        return _PIECES[(self._state >> 33) % len(_PIECES)]


def _token_id(piece: bytes) -> int:
    return _FIRST_ID[len(piece) - 1] + int.from_bytes(piece, "big")


def _person(seed: int | None) -> bytes:
    """The seed as blake2b's 16 bytes of personalisation; no seed differs from seed 0."""
    return b"" if seed is None else (seed % 2**64).to_bytes(8, "big") + b"seed"
