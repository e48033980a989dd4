"""Which worker processes run: all or none at the start, another one for each that dies, none at the end."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kvbudget.edge.workers import crew as crew_module
from kvbudget.edge.workers.crew import Crew, Worker
from kvbudget.errors import BadValueError

# A worker in small: reads its orders, does what they say, and ends when its parent does.
SMALL = """
import json, os, signal, socket, sys
parent = socket.socket(fileno=int(sys.argv[1]))
orders = json.loads(parent.makefile().readline())
if orders.get("die"):
    os.kill(os.getpid(), signal.SIGKILL)
def end(*_):
    os._exit(orders.get("code", 0))
if not orders.get("deaf"):
    signal.signal(signal.SIGTERM, end)
else:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
def again(*_):
    parent.sendall(json.dumps({"ready": {"pid": os.getpid(), "reloaded": True}}).encode() + b"\\n")
signal.signal(signal.SIGHUP, again)
if "failed" in orders:
    parent.sendall(json.dumps({"failed": orders["failed"]}).encode() + b"\\n")
    os._exit(2)
parent.sendall(json.dumps({"ready": {"pid": os.getpid()}}).encode() + b"\\n")
while parent.recv(1) or orders.get("stays"):
    pass
os._exit(9)
"""
Scene = Callable[[Crew], Awaitable[None]]


def play(scene: Scene, orders: Callable[[int], bytes] = lambda number: b"{}\n", **more: Any) -> None:
    async def run() -> None:
        crew = Crew(2, [sys.executable, "-c", SMALL], orders, **more)
        try:
            async with asyncio.timeout(60):
                await scene(crew)
        finally:
            await crew.close()

    asyncio.run(run())


async def until(what: Callable[[], bool]) -> None:
    while not what():
        await asyncio.sleep(0.005)


def test_it_serves_when_all_do_and_ends_when_they_are_told_to() -> None:
    began: list[int] = []
    ended: list[int] = []

    async def scene(crew: Crew) -> None:
        await crew.start()
        pids = [one.pid for one in crew.workers]
        assert all(one.is_up for one in crew.workers)
        assert sorted(began) == sorted(pids)
        crew.signal(signal.SIGTERM)
        assert await crew.finish(20)
        assert sorted(ended) == sorted(pids)
        assert not any(one.is_up for one in crew.workers)

    play(scene, began=began.append, ended=ended.append)


def test_who_dies_is_followed_by_another_and_the_rest_goes_on() -> None:
    served: list[int] = []

    async def scene(crew: Crew) -> None:
        await crew.start()
        first, second = [one.pid for one in crew.workers]
        os.kill(first, signal.SIGKILL)
        await until(lambda: crew.workers[0].is_up and crew.workers[0].pid != first)
        assert crew.workers[0].restarts == 1
        assert crew.workers[1].pid == second
        assert served == [0, 1, 0] or served == [1, 0, 0]

    play(scene, served=lambda worker: served.append(worker.number))


def test_one_that_dies_again_and_again_is_started_more_and_more_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module, "FIRST_PAUSE_S", 0.01)
    lives = iter(range(1000))

    async def scene(crew: Crew) -> None:
        await crew.start()
        for _ in range(4):
            pid = crew.workers[0].pid
            os.kill(pid, signal.SIGKILL)
            await until(lambda pid=pid: crew.workers[0].is_up and crew.workers[0].pid != pid)  # type: ignore[misc]
        assert crew.workers[0].restarts == 4
        assert crew.workers[0].pause_s == 0.01 * 2**3

    play(scene, lambda number: b'{"life": %d}\n' % next(lives))


def test_where_one_cannot_serve_none_does_and_its_reason_is_told() -> None:
    failed = b'{"failed": {"code": "bad_config", "message": "no such file", "fix": "name one"}}\n'

    async def scene(crew: Crew) -> None:
        with pytest.raises(BadValueError, match="no such file; name one") as told:
            await crew.start()
        assert told.value.code == "bad_config"
        assert not any(Path(f"/proc/{one.pid}").exists() for one in crew.workers)

    play(scene, lambda number: failed if number else b"{}\n")


def test_one_that_dies_before_it_served_is_an_error_of_the_start() -> None:
    async def scene(crew: Crew) -> None:
        with pytest.raises(BadValueError, match=r"worker 1 ended \(SIGKILL\) before it served"):
            await crew.start()

    play(scene, lambda number: b'{"die": true}\n' if number else b"{}\n")


def test_the_end_is_clean_only_if_it_was_for_all() -> None:
    async def scene(crew: Crew) -> None:
        await crew.start()
        crew.signal(signal.SIGTERM)
        assert not await crew.finish(20)

    play(scene, lambda number: b'{"code": 1}\n' if number else b"{}\n")


def test_one_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module, "_KILLED_AFTER_S", 0.05)

    async def scene(crew: Crew) -> None:
        await crew.start()
        crew.signal(signal.SIGTERM)
        assert not await crew.finish(0)
        assert not any(Path(f"/proc/{one.pid}").exists() for one in crew.workers)

    play(scene, lambda number: b'{"deaf": true, "stays": true}\n')


def test_a_change_of_settings_reaches_one_that_only_starts() -> None:
    async def scene(crew: Crew) -> None:
        starting = asyncio.create_task(crew.start())
        await asyncio.sleep(0)
        crew.signal(signal.SIGHUP)
        await starting
        await until(lambda: all(one.ready is not None and "reloaded" in one.ready for one in crew.workers))

    play(scene)


def test_told_to_end_while_it_starts_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(crew: Crew) -> None:
        starting = asyncio.create_task(crew.start())
        await asyncio.sleep(0)
        crew.signal(signal.SIGTERM)
        await starting
        assert await crew.finish(20)

    play(scene)


def test_a_place_knows_what_became_of_it() -> None:
    worker = Worker(3)
    assert (worker.number, worker.is_up, worker.restarts, worker.code) == (3, False, 0, None)


def test_in_a_hurry_who_does_not_heed_signals_ends_as_well() -> None:
    async def scene(crew: Crew) -> None:
        await crew.start()
        crew.hurry()
        assert not await crew.finish(20)
        assert [one.code for one in crew.workers] == [9, 9]

    play(scene, lambda number: b'{"deaf": true}\n')
