"""How many bytes a piece of a request can become once it is rendered and normalised: never too few.

Text: a byte-level or byte-fallback tokenizer spends at most one token on each byte of normalised text. ASCII does not
change under NFC; other characters grow at most threefold in UTF-8 (Unicode TR15, maximum expansion factors for NFC).
JSON: templates print tools and arguments with spaces, indentation or as tags, so it counts twice its indented form.
That form is added up and never written: its indentation alone is depth x elements, gigabytes for a body of megabytes.
"""

import json
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from kvbudget.edge.openai.errors import BadRequestError

NFC_GROWTH: Final = 3
STRUCTURE_GROWTH: Final = 2
# Bytes of indentation beyond which a request is refused: no engine has a context of as many tokens, and one whose
# template indents tools would have to write them. A schema of 1 MiB, ten deep, has about 3 MiB of it.
MAX_INDENT_BYTES: Final = 64 * 1024 * 1024
_INDENT: Final = 4
_ROLE_BYTES: Final = 20  # of {\n    "role": ""\n}; each character of the role itself becomes at most 6 bytes of JSON
# Scalars written at a time: between two slices another thread may run, and little text is held at once.
_SLICE: Final = 4096
_CONTAINERS: Final = frozenset((dict, list, tuple))


def text_bound(text: str) -> int:
    """Most bytes of `text` in UTF-8 after NFC."""
    if text.isascii():
        return len(text)
    size = len(text.encode("utf-8", "surrogatepass"))
    if unicodedata.is_normalized("NFC", text):
        return size
    ascii_chars = len(text.encode("ascii", "ignore"))
    return ascii_chars + NFC_GROWTH * (size - ascii_chars)


def json_bound(value: object) -> int:
    """Most bytes that any usual rendering of a JSON value takes: compact, spaced, indented, or as tags.

    Raises BadRequestError as `jsons_bound` does.
    """
    return 0 if value is None else jsons_bound((value,))


def jsons_bound(values: Collection[object]) -> int:
    """As `json_bound`, for several values at once: at least the sum of theirs, at a fraction of the cost.

    Walks the values level by level, so each member is looked at once whatever its depth. Raises BadRequestError
    (`prompt_too_large`) when the indentation alone would exceed MAX_INDENT_BYTES.
    """
    scalars: list[object] = []
    level: list[Collection[object]] = []
    _sort_out(values, scalars, level)
    size, spaces, depth = 0, 0, 0
    while level:
        below: list[Collection[object]] = []
        members = containers = 0
        for container in level:
            if not container:
                size += 2  # [] or {}
                continue
            containers += 1
            members += len(container)
            if isinstance(container, dict):
                scalars.extend(container)
                size += 2 * len(container)  # ": " behind each key
                _sort_out(container.values(), scalars, below)
            else:
                _sort_out(container, scalars, below)
        # A line for each member and for the closing bracket, two brackets, commas between members.
        spaces += _INDENT * (members * (depth + 1) + containers * depth)
        size += members + containers + 2 * containers + members - containers
        if spaces > MAX_INDENT_BYTES:
            raise BadRequestError(
                f"Indented, the tools and other JSON of this request would take more than {MAX_INDENT_BYTES} bytes of "
                f"blanks alone, because {members} members stand {depth + 1} levels deep; send fewer or flatter ones",
                None,
                "prompt_too_large",
            )
        level, depth = below, depth + 1
    return STRUCTURE_GROWTH * (size + spaces + _scalars_bound(scalars))


def content_bound(content: object) -> int:
    """Most bytes of a message's content: plain text as it is, text parts with a separator each, the rest as JSON."""
    return contents_bound((content,))


def contents_bound(contents: Iterable[object]) -> int:
    """The sum of `content_bound`, or a little more."""
    others: list[object] = []
    return sum(_content_text(content, others) for content in contents) + jsons_bound(others)


def message_bound(message: dict[str, object]) -> int:
    """Most bytes of one message, its role and other members included; the template's own words are not."""
    return messages_bound((message,))


def messages_bound(messages: Sequence[dict[str, object]]) -> int:
    """The sum of `message_bound`, or a little more."""
    size = 0
    others: list[object] = []
    for message in messages:
        role, content = message.get("role"), message.get("content")
        size += _content_text(content, others)
        if len(message) == 2 and isinstance(role, str) and role.isascii() and "content" in message:
            # As the JSON of {"role": ROLE} below, whose brackets, indentation and quotes are 20 bytes, counted twice.
            size += STRUCTURE_GROWTH * (_ROLE_BYTES + 6 * len(role))
        else:
            rest = message.copy()
            rest.pop("content", None)
            others.append(rest)
    return size + jsons_bound(others) if others else size


def _content_text(content: object, others: list[object]) -> int:
    """Bytes of the texts in a message's content; what only JSON can bound is put into `others`."""
    if isinstance(content, str):
        return text_bound(content)
    if not isinstance(content, list):
        if content is not None:
            others.append(content)
        return 0
    total = 0
    for part in content:
        if isinstance(part, str):
            total += text_bound(part) + 1
        elif isinstance(part, dict) and isinstance(text := part.get("text"), str):
            total += text_bound(text) + 1
            if len(part) > 2 or "type" not in part:
                rest = part.copy()
                del rest["text"]
                rest.pop("type", None)
                if rest:
                    others.append(rest)
        elif part is not None:
            others.append(part)
    return total


def _sort_out(values: Collection[object], scalars: list[object], containers: list[Collection[object]]) -> None:
    if _CONTAINERS.isdisjoint(map(type, values)):  # in C: most objects and arrays hold no other
        scalars.extend(values)
        return
    for value in values:
        if isinstance(value, (dict, list, tuple)):
            containers.append(value)
        else:
            scalars.append(value)


def _scalars_bound(scalars: list[object]) -> int:
    """Bytes of keys and scalars as JSON after NFC. One that is not normal makes all count as if they were not.

    Nothing composes with the quotation marks between them, so that they are normal together when each is alone.
    """
    ascii_chars = wide_bytes = 0
    normal = True
    for start in range(0, len(scalars), _SLICE):
        # No separators: every scalar as it would stand in the whole, between two brackets.
        text = json.dumps(scalars[start : start + _SLICE], ensure_ascii=False, separators=("", ""))[1:-1]
        if text.isascii():
            ascii_chars += len(text)
            continue
        narrow = len(text.encode("ascii", "ignore"))
        ascii_chars += narrow
        wide_bytes += len(text.encode("utf-8", "surrogatepass")) - narrow
        normal = normal and unicodedata.is_normalized("NFC", text)
    return ascii_chars + wide_bytes * (1 if normal else NFC_GROWTH)
