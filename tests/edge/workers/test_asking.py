"""The parent asks its workers whether they serve."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvbudget.edge.workers import asking
from kvbudget.edge.workers.asking import Asking, Said


class Crew:
    """Two that are up; the second takes a new process when it is killed."""

    def __init__(self) -> None:
        self.workers = [SimpleNamespace(number=n, pid=100 + n, is_up=True) for n in range(2)]
        self.killed: list[int] = []

    def kill(self, worker: Any) -> None:
        self.killed.append(worker.number)
        worker.pid += 10


def test_a_worker_that_says_nothing_three_times_in_a_row_is_killed_and_one_that_is_only_slow_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def scene() -> None:
        crew = Crew()
        asked = Asking(crew, str(tmp_path))  # type: ignore[arg-type]
        told = {0: [200, 0, 0, 200, 0, 0, 200], 1: [200, 0, 0, 0, 200, 0, 0]}

        async def ask(worker: Any, method: str, target: str, body: bytes) -> Said:
            if not told[worker.number]:
                raise asyncio.CancelledError  # the scene is over
            return Said(worker.number, told[worker.number].pop(0), b"")

        monkeypatch.setattr(asking, "_WATCH_S", 0.0)
        monkeypatch.setattr(asked, "_ask", ask)
        with pytest.raises(asyncio.CancelledError):
            await asked.watch()
        assert crew.killed == [1]
        asked.close()

    asyncio.run(scene())
