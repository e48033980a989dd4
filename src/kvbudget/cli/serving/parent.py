"""`kvbudget serve --workers N`: the parent of N processes, with their ledger and the one admin port of all."""

import argparse
import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from kvbudget.cli.serve import embedded_of, start_demo_engine
from kvbudget.cli.serving.ready_line import Ready, ReadyLine, tell_when_ready, told_by_gate
from kvbudget.cli.serving.settings import settings_from
from kvbudget.cli.serving.worker import Orders
from kvbudget.edge.asgi import AsgiServer, start_asgi
from kvbudget.edge.bank.socket_server import BankServer
from kvbudget.edge.control.access import AdminAccess
from kvbudget.edge.service import ADMIN_FLAGS
from kvbudget.edge.workers.admin import WorkersAdmin
from kvbudget.edge.workers.asking import Asking
from kvbudget.edge.workers.crew import Crew, Worker
from kvbudget.edge.workers.demand import WorkersDemand
from kvbudget.edge.workers.port import HeldPort
from kvbudget.errors import BadValueError, InputError

if TYPE_CHECKING:
    from kvbudget.edge.engine.server import RunningEngine
    from kvbudget.edge.service_settings import ServiceSettings

log = logging.getLogger("kvbudget")

_LONGEST_FOLDER = 80  # a Unix socket's whole path has at most 107 bytes


async def serve_with_workers(args: argparse.Namespace, settings: "ServiceSettings", given: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; 0 when all drained, 1 when anything had to be cut off. Raises InputError."""
    port = HeldPort(settings.host, settings.port)
    folder = _private_folder()
    try:
        return await _Parent(args, settings, given, port, folder).serve()
    finally:
        port.close()
        shutil.rmtree(folder, ignore_errors=True)


class _Parent:
    def __init__(
        self,
        args: argparse.Namespace,
        settings: "ServiceSettings",
        given: argparse.Namespace,
        port: HeldPort,
        folder: str,
    ) -> None:
        self._args = args
        self._settings = settings
        self._given = given
        self._port = port
        self._folder = folder
        self._engine: RunningEngine | None = None
        own = settings.ledger == "memory"
        self._bank = BankServer(os.path.join(folder, "ledger"), time.monotonic_ns) if own else None
        self._crew = Crew(
            settings.workers,
            [sys.executable, "-m", "kvbudget.cli.serving.worker"],
            self._orders,
            began=self._began,
            ended=self._ended,
            served=self._served,
        )
        self._asking = Asking(self._crew, folder)
        self._demand = WorkersDemand(self._asking, time.monotonic_ns)
        self._admin = WorkersAdmin(
            self._asking, self._demand, self._check, lambda: None if self._bank is None else self._bank.calls
        )
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> int:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()

        def stopped() -> None:
            if stop.is_set():
                self._crew.hurry()
            self._crew.signal(signal.SIGTERM)
            stop.set()

        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, stopped)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        server: AsgiServer | None = None
        try:
            if self._args.embedded_engine:
                self._engine = await start_demo_engine(self._args.max_num_seqs, self._args.max_num_batched_tokens)
            if self._bank is not None:
                await self._bank.start()
            settings = self._settings
            access = AdminAccess(self._admin.app, settings.admin_host, settings.admin_token)
            server = await start_asgi(access, settings.admin_host, settings.admin_port, ADMIN_FLAGS)
            await self._crew.start()
            self._demand.start()
            watching = asyncio.create_task(self._asking.watch(), name="watch workers")
            self._tasks.add(watching)
            if not stop.is_set():
                self._tell_ready(server.url)
            await stop.wait()
            print("draining; once more to stop at once", file=sys.stderr, flush=True)
            clean = await self._crew.finish(self._args.drain_seconds)
        finally:
            for task in self._tasks:
                task.cancel()
            await self._demand.close()
            await self._crew.close()
            self._asking.close()
            if server is not None:
                await server.close()
            if self._bank is not None:
                await self._bank.close()
            if self._engine is not None:
                await self._engine.close()
        return 0 if clean else 1

    def _tell_ready(self, admin_url: str) -> None:
        """Of all of them: as the first that is not ready stands, if there is one."""

        def look() -> Ready:
            each = [one.ready for one in self._crew.workers if one.ready is not None]
            stands = next((ready for ready in each if not ready["ready"]), each[0] if each else {"ready": False})
            return {**stands, "admin": admin_url, "workers": len(self._crew.workers)}

        line, ready = ReadyLine(told_by_gate, as_json=self._args.json), look()
        line.tell(ready)
        if not ready["ready"]:
            self._tasks.add(asyncio.create_task(tell_when_ready(look, line.tell), name="tell when ready"))

    # For the crew

    def _orders(self, number: int) -> bytes:
        engine = None if self._engine is None else embedded_of(self._engine)
        flags = {name: value for name, value in vars(self._given).items() if name not in ("run", "command")}
        ledger = None if self._bank is None else self._bank.path
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._asking.path(number))  # of one that died
        return Orders(number, flags, self._port.port, self._asking.path(number), ledger, engine).line()

    def _began(self, pid: int) -> None:
        if self._bank is not None:
            self._bank.expect(pid)

    def _ended(self, pid: int) -> None:
        """What it had promised the engine notices within the tail of an abort; then its blocks are free."""
        bank = self._bank
        if bank is not None:
            asyncio.get_running_loop().call_later(self._settings.gate.abort_tail_ns / 1e9, bank.ended, pid)

    def _served(self, worker: Worker) -> None:
        if worker.restarts:
            task = asyncio.create_task(self._admin.tell_again(worker))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    # What changes while it runs

    def _check(self) -> None:
        """Raises InputError where the file as it is now is none that could be taken over."""
        if getattr(self._given, "config", None) is None:
            raise BadValueError("started without --config, nothing to reload", fix="start with --config kvbudget.toml")
        settings_from(self._given)

    def _reload(self) -> None:
        path = getattr(self._given, "config", None)
        if path is None:
            log.warning("SIGHUP: started without --config, nothing to reload")
            return
        try:
            self._check()
        except InputError as error:
            log.error("SIGHUP: %s is not taken, the old settings stay in all workers: %s", path, error)
            return
        self._crew.signal(signal.SIGHUP)


def _private_folder() -> str:
    """For the Unix sockets: nobody else may enter it."""
    folder = tempfile.mkdtemp(prefix="kvbudget-")
    if len(folder) > _LONGEST_FOLDER:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="kvbudget-", dir="/tmp")
    return folder
