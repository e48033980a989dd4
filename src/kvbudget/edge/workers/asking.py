"""How the parent asks its workers: each has its control plane on a Unix socket of its own."""

import asyncio
import logging
import os
from typing import Any, Final, NamedTuple

import orjson

from kvbudget.edge.http.limits import UpstreamLimits
from kvbudget.edge.http.upstream import Response, Upstream, UpstreamError
from kvbudget.edge.web.answering import told_error
from kvbudget.edge.workers.crew import Crew, Worker

_ANSWER_S: Final = 5.0
_WATCH_S: Final = 2.0
_SILENT_TIMES: Final = 3  # 20 s: a worker that is only busy answers within that

log = logging.getLogger("kvbudget.workers")
_JSON: Final = [(b"content-type", b"application/json")]


class Said(NamedTuple):
    """What a worker answered; `status` 0: nothing."""

    worker: int
    status: int
    body: bytes

    def document(self) -> dict[str, Any]:
        """Empty where it is no JSON object."""
        try:
            found = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return {}
        return found if isinstance(found, dict) else {}


class Asking:
    """All workers of a crew, whose control planes listen in `folder`."""

    def __init__(self, crew: Crew, folder: str, *, answer_s: float = _ANSWER_S) -> None:
        self.crew = crew
        self._folder = folder
        self._answer_s = answer_s
        self._ways = [Upstream(f"unix:{self.path(one.number)}", UpstreamLimits()) for one in crew.workers]

    def path(self, number: int) -> str:
        """The Unix socket of a worker's control plane."""
        return os.path.join(self._folder, f"admin-{number}")

    async def get(self, target: str) -> list[Said]:
        """What those say who are up and answer."""
        said = await asyncio.gather(*[self._ask(one, "GET", target, b"") for one in self.crew.workers if one.is_up])
        return [one for one in said if one.status]

    async def post(self, target: str, body: bytes) -> list[Said]:
        """Tell all who are up, and hear what each says."""
        told = [self._ask(one, "POST", target, body) for one in self.crew.workers if one.is_up]
        return list(await asyncio.gather(*told))

    async def post_to(self, worker: Worker, target: str, body: bytes) -> Said:
        """Tell one."""
        return await self._ask(worker, "POST", target, body)

    async def watch(self) -> None:
        """For ever: kills who hangs, so that another takes its place; connections would come to it all the same."""
        silent: dict[int, int] = {}  # by pid: how often in a row
        while True:
            await asyncio.sleep(_WATCH_S)
            up = [(one, one.pid) for one in self.crew.workers if one.is_up]
            said = await asyncio.gather(*[self._ask(one, "GET", "/health", b"") for one, _ in up])
            silent = {pid: silent.get(pid, 0) + 1 for (_, pid), told in zip(up, said, strict=True) if not told.status}
            for one, pid in up:
                if silent.get(pid, 0) >= _SILENT_TIMES and one.pid == pid:
                    log.error("worker %d hangs; it is killed", one.number)
                    self.crew.kill(one)

    def close(self) -> None:
        """End the connections."""
        for way in self._ways:
            way.close()

    async def _ask(self, worker: Worker, method: str, target: str, body: bytes) -> Said:
        try:
            answer: Response = await self._ways[worker.number].request(
                method.encode(), target.encode(), _JSON, body, self._answer_s
            )
        except UpstreamError as error:
            return Said(worker.number, 0, bytes(told_error(502, "worker_gone", str(error)).body))
        return Said(worker.number, answer.status, answer.body)
