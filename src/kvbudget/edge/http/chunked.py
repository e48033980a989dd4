"""Decides where the chunks of a chunked body begin and end (RFC 9112, 7.1), strictly and without I/O.

Needed beside llhttp because a proxy has to know to the byte where the body ends inside of a read, and whether it stands
between two chunks: only there may it add an event of its own.
"""

import re
from typing import Final

# Extensions are allowed and skipped; a bare CR or LF inside of them is the classical smuggling gap and refused.
_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n\0]*)?\r\n")
_SIZE_LINE_BEGUN: Final = re.compile(rb"[0-9A-Fa-f]{0,15}[ \t]*(?:;[^\r\n\0]*)?\r?")
# No control bytes, as in headers; and no framing, which comes too late to be meant (RFC 9110, 6.5.1).
_TRAILER_LINE: Final = re.compile(
    rb"(?!(?i:content-length|transfer-encoding|host)[ \t]*:)[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*\r\n"
)
LINE_BYTES: Final = 4096
"""Longest chunk-size line, extensions included."""
TRAILER_BYTES: Final = 16384
"""Longest trailer section."""

_SIZE, _DATA, _DATA_END, _TRAILERS, _DONE = range(5)


class ChunkedError(ValueError):
    """The body breaks the chunked framing, or one of the limits above."""


class ChunkedDecoder:
    """Feeds on reads, gives the bytes of the body.

    `done` after the last byte of the trailers; then `excess` says how many bytes of the last read lie behind the body.
    `pending_bytes` of the chunk at hand are announced but not there yet.
    """

    __slots__ = ("_begun", "_state", "_trailer_bytes", "done", "excess", "pending_bytes")

    def __init__(self) -> None:
        self._state = _SIZE
        self._begun = b""
        self._trailer_bytes = 0
        self.pending_bytes = 0
        self.done = False
        self.excess = 0

    @property
    def between_chunks(self) -> bool:
        """True when a new chunk may be put in here: nothing of the next one, nor of the end, has passed."""
        return self._state == _SIZE and not self._begun

    def feed(self, data: bytes) -> bytes:
        """The body bytes in `data`. Raises ChunkedError; the decoder is not usable afterwards."""
        if self._state == _SIZE and not self._begun:  # the usual read of an event stream: exactly one chunk
            digits, _, rest = data.partition(b"\r\n")
            size = len(rest) - 2
            # Rendering the size costs 0.24 us, matching and parsing it 0.44, and is as strict: the rest goes below.
            if size > 0 and digits == b"%x" % size and rest.endswith(b"\r\n"):
                return rest[:size]
        elif self._state == _DATA and len(data) <= self.pending_bytes:  # the middle of a large chunk
            self._take(len(data))
            return data
        if self._begun:
            data = self._begun + data
            self._begun = b""
        pieces: list[bytes] = []
        position, end = 0, len(data)
        while position < end and not self.done:
            state = self._state
            if state == _SIZE:
                position = self._size_line(data, position)
                stop = position + self.pending_bytes
                if position < stop <= end - 2 and data.startswith(b"\r\n", stop):  # whole, as nearly all are
                    pieces.append(data[position:stop])
                    self.pending_bytes = 0
                    self._state = _SIZE
                    position = stop + 2
            elif state == _DATA:
                stop = min(position + self.pending_bytes, end)
                pieces.append(data[position:stop])
                self._take(stop - position)
                position = stop
            elif state == _DATA_END:
                position = self._data_end(data, position)
            else:
                position = self._trailer_line(data, position)
        self.excess = end - position
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _take(self, size: int) -> None:
        self.pending_bytes -= size
        if not self.pending_bytes:
            self._state = _DATA_END

    def _size_line(self, data: bytes, position: int) -> int:
        match = _SIZE_LINE.match(data, position)
        if match is None:
            if len(data) - position > LINE_BYTES or _SIZE_LINE_BEGUN.fullmatch(data, position) is None:
                raise ChunkedError("bad chunk size")
            self._begun = data[position:]
            return len(data)
        if match.end() - position > LINE_BYTES:
            raise ChunkedError("chunk extension too long")
        self.pending_bytes = int(match[1], 16)
        self._state = _DATA if self.pending_bytes else _TRAILERS
        return match.end()

    def _data_end(self, data: bytes, position: int) -> int:
        if data.startswith(b"\r\n", position):
            self._state = _SIZE
            return position + 2
        if data[position:] != b"\r":
            raise ChunkedError("chunk longer than its size")
        self._begun = b"\r"
        return len(data)

    def _trailer_line(self, data: bytes, position: int) -> int:
        stop = data.find(b"\n", position) + 1
        line = data[position:stop] if stop else data[position:]
        if self._trailer_bytes + len(line) > TRAILER_BYTES:
            raise ChunkedError("trailers too long")
        if not stop:
            self._begun = line
            return len(data)
        self._trailer_bytes += len(line)
        if line == b"\r\n":
            self._state = _DONE
            self.done = True
        elif _TRAILER_LINE.fullmatch(line) is None:
            raise ChunkedError("bad trailer")
        return stop


def chunk(data: bytes) -> bytes:
    """`data` (not empty: an empty chunk would end the body) as one chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


LAST_CHUNK: Final = b"0\r\n\r\n"
