"""Decides which worker processes run: starts them, starts anew who died, hands on signals, ends them all."""

import asyncio
import contextlib
import json
import logging
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from kvbudget.errors import BadValueError, printable

log = logging.getLogger("kvbudget.workers")

FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 30.0
_WELL_S: Final = 30.0  # who lived so long died of something new: it is started again at once
_KILLED_AFTER_S: Final = 10.0  # beyond the time that a worker takes for its own end


class Worker:
    """One place among the workers, and the process that has it now."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pid = 0
        self.ready: dict[str, Any] | None = None  # what it said last, since it began to serve
        self.restarts = 0
        self.pause_s = 0.0  # before the process that is there now, or comes next, was started
        self.code: int | None = None  # how the last process ended
        self.reload = False  # it may have read the settings before they changed
        self.process: asyncio.subprocess.Process | None = None
        self.writer: asyncio.StreamWriter | None = None

    @property
    def is_up(self) -> bool:
        """Whether it serves."""
        return self.ready is not None


class Crew:
    """`count` workers. `start`, then `signal` and `finish`, or `close` at any time."""

    def __init__(
        self,
        count: int,
        command: Sequence[str],
        orders: Callable[[int], bytes],
        *,
        began: Callable[[int], None] = lambda pid: None,
        ended: Callable[[int], None] = lambda pid: None,
        served: Callable[[Worker], None] = lambda worker: None,
    ) -> None:
        """`command`: of a worker; the descriptor of its end of a socket pair is put after it. `orders`: the first line
        that it reads there, by its number. `began`, `ended`: hear of each process, by its pid, before it reads that
        line and when it is no more; `served`: of each that begins to serve."""
        self.workers = [Worker(number) for number in range(count)]
        self.stopping = False
        self._command = list(command)
        self._orders = orders
        self._began, self._ended, self._served = began, ended, served
        self._keepers: list[asyncio.Task[None]] = []
        self._failed: asyncio.Future[None] | None = None
        self._change = asyncio.Event()
        self._stop = asyncio.Event()

    async def start(self) -> None:
        """Start all, and wait until they serve. Raises BadValueError where one cannot, and then none is left."""
        failed = self._failed = asyncio.get_running_loop().create_future()
        self._keepers = [asyncio.create_task(self._keep(one), name=f"worker {one.number}") for one in self.workers]
        try:
            while not all(one.is_up for one in self.workers) and not self.stopping:
                waiting = asyncio.create_task(self._change.wait())
                await asyncio.wait([waiting, failed], return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                self._change.clear()
                if failed.done():
                    failed.result()
        except BaseException:
            await self.close()
            raise

    def signal(self, signum: int) -> None:
        """To each that runs. SIGTERM: none is started again."""
        if signum == signal.SIGTERM:
            self._to_stop()
        for one in self.workers:
            if signum == signal.SIGHUP and not one.is_up:
                one.reload = True
            else:
                _signal(one, signum)

    def kill(self, worker: Worker) -> None:
        """One that hangs; another is started."""
        _signal(worker, signal.SIGKILL)

    def hurry(self) -> None:
        """Each ends at once, as if its parent were gone. A second signal would not do: one that is not taken yet
        swallows it."""
        self._to_stop()
        for one in self.workers:
            if one.writer is not None and not one.writer.is_closing():
                one.writer.write_eof()

    async def finish(self, within_s: float) -> bool:
        """Wait for all to end, who were told to; True if none had to cut anything off, or to be killed."""
        self._to_stop()
        try:
            async with asyncio.timeout(within_s + _KILLED_AFTER_S):
                await asyncio.gather(*[asyncio.shield(keeper) for keeper in self._keepers])
        except TimeoutError:
            log.error("workers that do not end are killed")
            await self.close()
            return False
        return not any(one.code for one in self.workers)

    async def close(self) -> None:
        """End all hard; may be called in any state."""
        self._to_stop()
        for one in self.workers:
            _signal(one, signal.SIGKILL)
        await asyncio.gather(*self._keepers, return_exceptions=True)

    def _to_stop(self) -> None:
        self.stopping = True
        self._stop.set()
        self._change.set()

    async def _keep(self, worker: Worker) -> None:
        """One place: a process in it, and another one after that."""
        while not self._stop.is_set():
            began = time.monotonic()
            served = await self._run(worker)
            if self._stop.is_set():
                worker.code = worker.code if served else 0  # nothing was cut off
                return
            if not served and not worker.restarts and self._failed is not None:
                if not self._failed.done():
                    told = f"worker {worker.number} ended ({_how(worker.code)}) before it served"
                    self._failed.set_exception(BadValueError(told, fix="look at what it said above"))
                return
            well = time.monotonic() - began > _WELL_S
            worker.pause_s = min(2 * (0.0 if well else worker.pause_s) or FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            worker.restarts += 1
            log.error("worker %d is dead (%s); another is started", worker.number, _how(worker.code))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), worker.pause_s)
                worker.code = 0  # none is there that could cut anything off

    async def _run(self, worker: Worker) -> bool:
        """One process from its start to its end; whether it came to serve."""
        ours, theirs = socket.socketpair()
        try:
            # A session of its own: what a terminal sends to all comes once, from here.
            worker.process = await asyncio.create_subprocess_exec(
                *self._command, str(theirs.fileno()),
                stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        process, worker.pid = worker.process, worker.process.pid
        self._began(worker.pid)
        if self.stopping:
            process.kill()
        served = False
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=1 << 20)
        worker.writer = writer
        try:
            writer.write(self._orders(worker.number))
            while line := await reader.readline():
                served |= self._heard(worker, json.loads(line))
        except (OSError, ValueError) as error:
            log.error("worker %d: %s", worker.number, error)
        finally:
            writer.close()  # for a worker that lives, the sign to end
            worker.code = await process.wait()
            worker.ready = worker.process = worker.writer = None
            self._ended(worker.pid)
        return served

    def _heard(self, worker: Worker, told: dict[str, Any]) -> bool:
        if (failed := told.get("failed")) is not None:
            if worker.restarts:
                log.error("worker %d: %s; %s", worker.number, printable(failed["message"]), printable(failed["fix"]))
            elif self._failed is not None and not self._failed.done():
                error = BadValueError(failed["message"], fix=failed["fix"])
                error.code = failed["code"]
                self._failed.set_exception(error)
            return False
        serves_already = worker.is_up
        worker.ready = told["ready"]
        if serves_already:  # what it waited for has come
            return True
        if worker.restarts:
            log.info("worker %d serves again", worker.number)
        if worker.reload:
            worker.reload = False
            _signal(worker, signal.SIGHUP)
        self._served(worker)
        self._change.set()
        return True


def _signal(worker: Worker, signum: int) -> None:
    if worker.process is not None:
        with contextlib.suppress(ProcessLookupError):
            worker.process.send_signal(signum)


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"
    return f"exit {code}"
