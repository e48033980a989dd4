"""Decides which member of an answer's documents is at its end, read from the last bytes of the answer, plain or SSE.

A document whose start was cut off is told by how many braces are still to be closed behind a key: by one behind a
member of the document itself. Whatever lies deeper is content, a client's own words among it.
"""

import re
from collections.abc import Iterator
from typing import Final

import orjson

# The relay keeps this much of every answer. vLLM 0.32 writes `usage` behind `choices`, so it is in here unless
# ids of the prompt or logprobs follow it.
TAIL_BYTES: Final = 8192

# Strings, one that nothing ends included, so that no sign is looked at twice; and what opens and closes.
_STRUCTURE: Final = re.compile(rb'"(?:[^"\\]+|\\.)*(?:"|\\?\Z)|[{}\[\]]', re.DOTALL)
_AT_TOP: Final = 1  # braces that are open at a key, of a document that ends whole
_WITHIN: Final = 2
_QUOTE, _OPENING = 0x22, (0x7B, 0x5B)
_ESCAPE: Final = b"\\u00"


class Member:
    """A member that documents have at the top; `within`: those of a stream may have it in this one instead."""

    __slots__ = ("_key", "_sign", "name", "within")

    def __init__(self, name: str, within: str = "") -> None:
        self.name = name
        self.within = within
        self._sign = b'"%b"' % name.encode()
        # A quote inside a JSON string is always escaped, so these bytes are a key wherever they stand: content that
        # spells `"usage":` arrives as `\"usage\":` and does not match. A key may be written with escapes, which
        # parsers undo.
        spelled = "".join([rf"(?:{letter}|\\u{ord(letter):04x})" for letter in name])
        self._key = re.compile(rf'(?<!\\)"{spelled}"\s*:'.encode())

    def objects(self, tail: bytes) -> Iterator[dict[str, object]]:
        """Of each document of an answer that has it as an object, the last first.

        `tail` may begin anywhere inside the answer; only its last `TAIL_BYTES` are read. Never raises.
        """
        tail = bytes(tail[-TAIL_BYTES:])
        if not _is_event_stream(tail):
            found = self._in(self._document(tail, ""), "")
            if found is not None:
                yield found
            return
        lines = tail.splitlines()
        for at in range(len(lines) - 1, -1, -1):
            line = lines[at]
            if line.startswith(b"data:"):  # whole, as far as it goes
                document = parsed(line[5:].strip()) if self._may_be_in(line) else None
            elif at == 0:  # its start may be cut off
                document = self._document(line, self.within)
            else:
                continue
            found = self._in(document, self.within)
            if found is not None:
                yield found

    def _in(self, document: object, within: str) -> dict[str, object] | None:
        if not isinstance(document, dict):
            return None
        found = document.get(self.name)
        if not isinstance(found, dict) and within:
            inner = document.get(within)
            found = inner.get(self.name) if isinstance(inner, dict) else None
        return found if isinstance(found, dict) else None

    def _may_be_in(self, text: bytes) -> bool:
        """Whether there is such a key in it, or what may be one written with escapes."""
        return self._sign in text or _ESCAPE in text

    def _document(self, text: bytes, within: str) -> object:
        """The JSON document in `text`, or what can be told of its end when its start was cut off.

        A cut document is closed again with an opening brace before the last key that stands at the top; or, where it
        may lie `within`, with two before one that stands a level down. Only these two are tried: an earlier key at the
        same level is followed by all of what a later one is followed by.
        """
        if not self._may_be_in(text):
            return None
        document = parsed(text)
        if document is not None:
            return document
        keys = [key.start() for key in self._key.finditer(text)]
        if not keys:
            return None
        top, inner = _levels(text, keys)
        document = None if top < 0 else parsed(b"{" + text[top:])
        if within and inner >= 0 and self._in(document, "") is None:
            document = parsed(b'{"%b":{' % within.encode() + text[inner:])
        return document


def _is_event_stream(tail: bytes) -> bool:
    """JSON text escapes line feeds inside strings, and no JSON line begins with `data:` or `event:`. Of an event
    longer than the tail the empty line is left that ends it; no engine ends a plain answer so."""
    if tail.startswith((b"data:", b"event:")) or tail.endswith((b"\n\n", b"\r\n\r\n")):
        return True
    return b"\ndata:" in tail or b"\nevent:" in tail


def _levels(text: bytes, keys: list[int]) -> tuple[int, int]:
    """Where the last of `keys` begin that stand at the top, and one level down; -1: none does. In one pass: from the
    first key on, every quote is seen for what it is."""
    opened: list[int] = []  # at each key, since the first
    depth, at = 0, 0
    for found in _STRUCTURE.finditer(text, keys[0]):
        sign = text[found.start()]
        if sign == _QUOTE:
            if at < len(keys) and found.start() == keys[at]:
                opened.append(depth)
                at += 1
        elif sign in _OPENING:
            depth += 1
        else:
            depth -= 1
    top = within = -1
    for key, level in zip(keys, opened, strict=False):
        left = level - depth  # that are closed behind it
        if left == _AT_TOP:
            top = key
        elif left == _WITHIN:
            within = key
    return top, within


def parsed(text: bytes) -> object:
    """The JSON document in `text`, None where it is none."""
    try:
        return orjson.loads(text)
    except (ValueError, RecursionError):  # orjson's error is a ValueError; a tail may hold anything
        return None
