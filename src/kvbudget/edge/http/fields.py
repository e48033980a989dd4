"""Decides whether the lines of a message head are lawful: CRLF ends, token names, values without control bytes.

The grammar of RFC 9112, 2.1 and 5, in a few passes of C over the whole head. An llhttp parser that calls into Python
for every header costs the same with 5 headers and half as much again with 17 (5.1 us to 3.4), and leaves part of these
checks to do; one regular expression costs 2 to 4 times as much.
"""

import re
from typing import Final

from kvbudget.edge.http.messages import Headers

# Everything that may stand inside of a line (RFC 9110, 5.5: HTAB, SP, VCHAR, obs-text).
_TEXT: Final = bytes(byte for byte in range(256) if byte == 0x09 or (byte >= 0x20 and byte != 0x7F))
TOKEN: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_NAMES: Final = 1024
_NAME_BYTES: Final = 64
# A second one of these could mean something else to the next parser.
_ONCE: Final = frozenset({b"host", b"content-length", b"transfer-encoding", b"expect", b"upgrade"})


class FieldsError(ValueError):
    """The lines are not lawful; the text says why. `duplicate` where a header is given twice that must not be."""

    def __init__(self, message: str, *, duplicate: bool = False) -> None:
        super().__init__(message)
        self.duplicate = duplicate


class _Names(dict[bytes, bytes]):
    """Names as they came to names lower-cased. Only tokens get in, so to be in here is to be lawful.

    A look-up costs 0.02 us, matching and lower-casing the same few names in every head 0.15.
    """

    def __missing__(self, name: bytes) -> bytes:
        if TOKEN.fullmatch(name) is None:
            raise FieldsError("malformed header name")
        lower = name.lower()
        if len(self) < _NAMES and len(name) <= _NAME_BYTES:
            self[name] = lower
        return lower


_lower_names = _Names()


def read_lines(raw: bytes) -> tuple[bytes, Headers, dict[bytes, bytes]]:
    """The first line of a head, its headers, and the last value of each name. Raises FieldsError.

    `raw` is the head without its last CRLF CRLF.
    """
    lines = raw.split(b"\r\n")
    # What is left without all text are control bytes; they must be the line ends and no others. Each CRLF that split
    # found is one pair of them, so a bare CR or LF anywhere makes one byte too many.
    if raw.translate(None, _TEXT) != b"\r\n" * (len(lines) - 1):
        raise FieldsError("control bytes in the head, or lines that do not end with CRLF")
    first = lines.pop(0)
    headers: Headers = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon:
            raise FieldsError("a header line without colon")
        headers.append((_lower_names[name], value.strip()))  # of all blanks only HTAB and SP are left to strip
    by_name = dict(headers)
    if len(by_name) != len(headers):
        names = [name for name, _ in headers]
        for name in _ONCE:
            if names.count(name) > 1:
                raise FieldsError(f"header {name.decode()} is given twice; send it once", duplicate=True)
    return first, headers, by_name
