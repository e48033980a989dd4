"""How many bytes a piece of a request can become once it is rendered and normalised: never too few.

Text: a byte-level or byte-fallback tokenizer spends at most one token on each byte of normalised text. ASCII does not
change under NFC; other characters grow at most threefold in UTF-8 (Unicode TR15, maximum expansion factors for NFC).
JSON: templates print tools and arguments with spaces, indentation or as tags, so it counts twice its indented form.
"""

import json
import unicodedata

NFC_GROWTH = 3
STRUCTURE_GROWTH = 2
_INDENT = 4
_ROLE_BYTES = 20  # of {\n    "role": ""\n}; each character of the role itself becomes at most 6 bytes of JSON


def text_bound(text: str) -> int:
    """Most bytes of `text` in UTF-8 after NFC."""
    if text.isascii():
        return len(text)
    size = len(text.encode("utf-8", "surrogatepass"))
    if unicodedata.is_normalized("NFC", text):
        return size
    ascii_chars = sum(map(str.isascii, text))
    return ascii_chars + NFC_GROWTH * (size - ascii_chars)


def json_bound(value: object) -> int:
    """Most bytes that any usual rendering of a JSON value takes: compact, spaced, indented, or as tags."""
    if value is None:
        return 0
    return STRUCTURE_GROWTH * text_bound(json.dumps(value, ensure_ascii=False, indent=_INDENT))


def content_bound(content: object) -> int:
    """Most bytes of a message's content: plain text as it is, text parts with a separator each, the rest as JSON."""
    if isinstance(content, str):
        return text_bound(content)
    if not isinstance(content, list):
        return json_bound(content)
    total = 0
    for part in content:
        if isinstance(part, str):
            total += text_bound(part) + 1
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            rest = {key: value for key, value in part.items() if key not in ("text", "type")}
            total += text_bound(part["text"]) + 1 + (json_bound(rest) if rest else 0)
        else:
            total += json_bound(part)
    return total


def message_bound(message: dict[str, object]) -> int:
    """Most bytes of one message, its role and other members included; the template's own words are not."""
    role, content = message.get("role"), message.get("content")
    if len(message) == 2 and isinstance(role, str) and role.isascii() and isinstance(content, str):
        # As the JSON of {"role": ROLE} below, whose brackets, indentation and quotes are 20 bytes, counted twice.
        return text_bound(content) + STRUCTURE_GROWTH * (_ROLE_BYTES + 6 * len(role))
    rest = {key: value for key, value in message.items() if key != "content"}
    return content_bound(message.get("content")) + json_bound(rest)
