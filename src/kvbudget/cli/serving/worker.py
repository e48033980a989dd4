"""One of the processes of `kvbudget serve --workers N`: what its parent tells it, and what it tells its parent.

Started by the parent as `python -m kvbudget.cli.serving.worker FD`, with one end of a socket pair. The first line that
it reads there are its orders. The end of the stream says to end at once: the parent is in a hurry, or gone, and no
worker outlives it, since ledger and admin port are gone with it.
"""

import argparse
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from kvbudget.errors import InputError

if TYPE_CHECKING:
    from kvbudget.edge.bank.store import BankStore
    from kvbudget.edge.service_settings import ServiceSettings

_ENDS_WITHIN_S = 3.0  # after the parent's end


class Embedded(NamedTuple):
    """The embedded engine, which runs in another process or in this one, as the gate is told of it."""

    url: str
    max_num_seqs: int
    max_num_batched_tokens: int


class Orders(NamedTuple):
    """What a worker is told at its start. `given`: flags, as they were given to the parent. `port`: of the data plane,
    which the parent holds. `admin`, `ledger`: Unix sockets; no ledger: the one that the flags name."""

    number: int
    given: dict[str, Any]
    port: int
    admin: str
    ledger: str | None
    engine: Embedded | None

    def line(self) -> bytes:
        """As it goes over the socket pair."""
        return json.dumps(self._asdict()).encode() + b"\n"


class Worker:
    """This process's place among several."""

    def __init__(self, orders: Orders, parent: socket.socket) -> None:
        self.number = orders.number
        self._orders = orders
        self._parent = parent

    def placed(self, settings: "ServiceSettings") -> "ServiceSettings":
        """What flags and file say, with what the parent has decided."""
        orders = self._orders
        settings = replace(settings, port=orders.port, admin_host=f"unix:{orders.admin}", admin_token=None)
        return settings if orders.engine is None else before_embedded(settings, orders.engine)

    def store(self) -> "BankStore | None":
        """The ledger that all workers share; None: the one that the settings name."""
        if self._orders.ledger is None:
            return None
        from kvbudget.edge.bank.socket_store import SocketStore

        return SocketStore(self._orders.ledger)

    def ready(self, document: Mapping[str, Any]) -> None:
        """Tell the parent that it serves, and again that it is ready."""
        self._tell({"ready": document})

    def failed(self, error: InputError) -> None:
        """Tell the parent that it cannot."""
        self._tell({"failed": {"code": error.code, "message": error.message, "fix": error.fix}})

    def watch(self, orphaned: Callable[[], object]) -> None:
        """Call `orphaned` in the running loop when the parent is no more; end hard if that does not help."""
        import asyncio

        loop = asyncio.get_running_loop()

        def wait() -> None:
            try:
                while self._parent.recv(4096):
                    pass
            except OSError:
                pass
            try:
                loop.call_soon_threadsafe(orphaned)
            except RuntimeError:  # it has ended by itself
                return
            time.sleep(_ENDS_WITHIN_S)
            os._exit(1)

        threading.Thread(target=wait, name="parent", daemon=True).start()

    def _tell(self, document: Mapping[str, Any]) -> None:
        try:
            self._parent.sendall(json.dumps(document).encode() + b"\n")
        except OSError:
            pass  # there is no parent any more, which `watch` sees as well


def before_embedded(settings: "ServiceSettings", engine: Embedded) -> "ServiceSettings":
    """The settings of a gate before the embedded engine."""
    from kvbudget.cli.serving.settings import prefill_tokens

    gate = replace(
        settings.gate,
        max_num_seqs=engine.max_num_seqs,
        prefill_tokens_per_step=prefill_tokens(engine.max_num_batched_tokens, engine.max_num_seqs),
    )
    return replace(settings, backend_url=engine.url, gate=gate)


def main(argv: list[str]) -> int:
    """Serve as the parent orders. 0: drained, 1: cut off, 2: it cannot."""
    from kvbudget.cli.serve import log_to_stderr, serve_as
    from kvbudget.cli.serving.settings import budget_given, completed, settings_of

    for signum in (signal.SIGINT, signal.SIGHUP):  # until it has handlers of its own
        signal.signal(signum, signal.SIG_IGN)
    parent = socket.socket(fileno=int(argv[0]))
    orders = _orders_from(parent)
    if orders is None:
        return 1
    log_to_stderr(f"worker {orders.number}: ")
    worker, given = Worker(orders, parent), argparse.Namespace(**orders.given)
    try:
        budget = budget_given(given)
        args = completed(given, budget)
        return serve_as(worker, args, settings_of(args, budget), given)
    except InputError as error:
        worker.failed(error)
        return 2


def _orders_from(parent: socket.socket) -> Orders | None:
    """None: there is no parent any more."""
    data = b""
    while not data.endswith(b"\n"):
        more = parent.recv(65536)
        if not more:
            return None
        data += more
    told = json.loads(data)
    engine = told.pop("engine")
    return Orders(**told, engine=None if engine is None else Embedded(*engine))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
