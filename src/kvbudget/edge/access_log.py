"""Decides what is written of each request, one JSON object a line, and how it gets to the file without a wait.

Never a prompt, an answer or a key: lengths, times, what was promised and how it ended. The lines are kept in memory for
a moment and written by a thread; a disk that is full or slow loses lines, which are counted, and never stops a request.
A file that was renamed or removed (logrotate) is opened anew by its name.
"""

import asyncio
import logging
import os
import select
import stat
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import orjson

from kvbudget.edge.request.record import Record
from kvbudget.errors import BadValueError, printable
from kvbudget.gate.commands import Reject
from kvbudget.gate.refusing.refusals import Outcome, Refusal

if TYPE_CHECKING:
    pass

log = logging.getLogger("kvbudget.access")

STDOUT = "-"
EVERY_S = 0.5
_DEL = b"\x7f"
MOST_WAITING_BYTES = 8 << 20  # of lines that the disk has not taken yet; more are lost, and counted


class AccessLog:
    """The log at `path`, or on stdout. `lost` counts the lines that could not be written."""

    def __init__(self, path: str, *, every_s: float = EVERY_S) -> None:
        self.path = path
        self.lost = 0
        self._every_s = every_s
        self._lines: list[bytes] = []
        self._waiting_bytes = 0
        self._file: int | None = None
        self._inode: tuple[int, int] | None = None
        self._writer = ThreadPoolExecutor(1, "access log")
        self._task: asyncio.Task[None] | None = None
        self._failing = False
        # One pair of clocks for all lines: a step of the wall clock does not make a request last for years.
        self._wall_ns = time.time_ns() - time.monotonic_ns()

    def open(self) -> None:
        """Open it, and write from now on. Raises BadValueError where it cannot be written."""
        try:
            self._reopen()
        except OSError as error:
            raise BadValueError(
                f"--access-log {printable(self.path[-200:])}: {error.strerror or error}",
                fix="name a file that the gate may write, or - for stdout",
            ) from None
        self._task = asyncio.create_task(self._keep_writing(), name="access log")

    async def close(self) -> None:
        """Write what is left; may be called in any state, and again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            await self.flush()
        self._writer.shutdown(wait=True)
        if self._file is not None and self.path != STDOUT:
            os.close(self._file)
        self._file = None

    def refused(self, record: Record, status: int, refusal: Refusal, now_ns: int, reject: Reject | None = None) -> None:
        """It was not forwarded."""
        waited_ns = 0 if reject is None else reject.waited_ns
        told_ns = None if reject is None else reject.retry_after_ns
        more: dict[str, object] = {
            "refusal": refusal.value,
            "queue_ms": _ms(waited_ns),
            "retry_after_ms": told_ns and _ms(told_ns),
        }
        self._put(record, "refused", status, now_ns, more)

    def ended(
        self, record: Record, outcome: Outcome, status: int | None, now_ns: int, output: int | None, cached: int | None
    ) -> None:
        """It was admitted or waited, and is over."""
        more: dict[str, object] = {"output_tokens": output, "cached_tokens": cached}
        self._put(record, outcome.value, status, now_ns, more)

    async def flush(self) -> None:
        """Hand what has been gathered to the disk, and wait for it."""
        lines, self._lines = self._lines, []
        waiting_bytes, self._waiting_bytes = self._waiting_bytes, 0
        if not lines:
            return
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer, self._write, lines)
            self._failing = False
        except OSError as error:
            self.lost += len(lines)
            if not self._failing:
                shown = printable(self.path[-200:])
                log.warning("%s: %d bytes of lines are lost: %s", shown, waiting_bytes, error.strerror or error)
            self._failing = True

    def _put(self, record: Record, outcome: str, status: int | None, now_ns: int, more: dict[str, object]) -> None:
        identity, asked, admitted = record.identity, record.asked, record.admitted
        entry: dict[str, object] = {
            "time": iso_time(self._wall_ns + record.since_ns),
            "request_id": identity.request_id.decode("latin-1"),
            "tenant": identity.tenant,
            "priority": identity.priority,
            "peer": record.peer,
            "outcome": outcome,
            "status": status,
            "duration_ms": _ms(now_ns - record.since_ns),
            "prompt_tokens": record.prompt_tokens,
            "prompt_exact": record.exact,
        }
        if asked is not None:
            entry |= {
                "surface": asked.surface,
                "model": asked.model,
                "stream": asked.stream,
                "sequences": asked.sequences,
                "max_tokens": asked.declared,
            }
        if admitted is not None:
            entry |= {
                "instance": record.instance,
                "reserved_blocks": admitted.reserved_blocks,
                "reserved_new_tokens": admitted.max_new_tokens,
                "queue_ms": _ms(admitted.waited_ns),
                "first_token_ms": None if record.first_ns is None else _ms(record.first_ns - record.since_ns),
            }
        line = _line_of(entry | more)
        if self._waiting_bytes + len(line) > MOST_WAITING_BYTES:
            self.lost += 1
            return
        self._lines.append(line)
        self._waiting_bytes += len(line)

    async def _keep_writing(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self.flush()

    # By the one thread of the writer

    def _write(self, lines: list[bytes]) -> None:
        if self.path != STDOUT and self._moved():
            self._reopen()
        assert self._file is not None  # noqa: S101 - `open` came before
        # What several worker processes append to one file stays whole, as each write is one: to a file of any size, to
        # a pipe or terminal up to PIPE_BUF (pipe(7)).
        is_file = stat.S_ISREG(os.fstat(self._file).st_mode)
        for piece in [b"".join(lines)] if is_file else _pieces(lines, select.PIPE_BUF):
            view = memoryview(piece)
            while view:
                view = view[os.write(self._file, view) :]

    def _moved(self) -> bool:
        try:
            found = os.stat(self.path)
        except OSError:
            return True
        return (found.st_dev, found.st_ino) != self._inode

    def _reopen(self) -> None:
        if self.path == STDOUT:
            self._file = 1
            return
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        if self._file is not None:
            os.close(self._file)
        found = os.fstat(file)
        self._file, self._inode = file, (found.st_dev, found.st_ino)


def _line_of(entry: dict[str, object]) -> bytes:
    """JSON escapes the control characters of ASCII alone, DEL aside. Whatever else could end a line or steer a terminal
    (U+0085, U+009B, U+2028, marks of direction) is escaped here: a client chose the name of its model."""
    line = orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE)
    if line.isascii() and _DEL not in line:
        return line
    return "".join([one if one.isprintable() else _escaped(one) for one in line[:-1].decode()]).encode() + b"\n"


def _escaped(one: str) -> str:
    return "".join([f"\\u{unit[0]:04x}" for unit in struct.iter_unpack(">H", one.encode("utf-16-be"))])


def _pieces(lines: list[bytes], most_bytes: int) -> Iterator[bytes]:
    """Whole lines together, as many as fit; one that is longer by itself goes alone."""
    held: list[bytes] = []
    size = 0
    for line in lines:
        if held and size + len(line) > most_bytes:
            yield b"".join(held)
            held, size = [], 0
        held.append(line)
        size += len(line)
    yield b"".join(held)


def _ms(duration_ns: int) -> float:
    return round(duration_ns / 1e6, 3)


def iso_time(time_ns: int) -> str:
    """A stamp with milliseconds, in UTC."""
    seconds, rest_ns = divmod(time_ns, 10**9)
    parts = time.gmtime(seconds)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', parts)}.{rest_ns // 1_000_000:03d}Z"
