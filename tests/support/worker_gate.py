"""A gate of several worker processes before an engine in the test's own loop."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

START_S = 60.0
END_S = 30.0


@dataclass
class Gate:
    """The parent process; `ready` is what it said. `errors`: all of its stderr so far."""

    process: asyncio.subprocess.Process
    ready: dict[str, Any]
    client: httpx.AsyncClient
    admin: httpx.AsyncClient
    errors: Path

    async def json(self, path: str) -> Any:
        answer = await self.admin.get(path)
        return answer.json()

    async def pids(self) -> list[int]:
        return [one["pid"] for one in (await self.json("/health"))["workers"]]

    async def until(self, what: Callable[[], Awaitable[bool]], within_s: float = 30.0) -> None:
        async with asyncio.timeout(within_s):
            while not await what():
                await asyncio.sleep(0.02)

    async def told(self, text: str) -> None:
        async def there() -> bool:
            return text in self.errors.read_text()

        await self.until(there)

    async def ended(self, signum: int = signal.SIGTERM) -> int:
        self.process.send_signal(signum)
        return await asyncio.wait_for(self.process.wait(), END_S)


@asynccontextmanager
async def serving(folder: Path, *flags: str, workers: int = 2, port: int = 0) -> AsyncIterator[Gate]:
    """Started and ready; whatever is left of it at the end is killed, by pid."""
    errors = folder / "errors.txt"
    command = [sys.executable, "-m", "kvbudget", "serve", "--json", "--workers", str(workers)]
    command += ["--port", str(port), "--admin-port", "0", *flags]
    with errors.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=file, env={**os.environ, "TMPDIR": str(folder)}
        )
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), START_S)
        assert line, errors.read_text()
        ready = json.loads(line)
        limits = httpx.Limits(max_connections=500, max_keepalive_connections=0)
        async with (
            httpx.AsyncClient(base_url=ready["gate"], timeout=60, limits=limits) as client,
            httpx.AsyncClient(base_url=ready["admin"], timeout=60) as admin,
        ):
            yield Gate(process, ready, client, admin, errors)
    finally:
        if process.returncode is None:
            process.kill()  # its workers end with it
        await process.communicate()


async def gone(pids: Sequence[int], within_s: float = 20.0) -> None:
    """Wait until none of these processes is there."""
    async with asyncio.timeout(within_s):
        while any(_lives(pid) for pid in pids):
            await asyncio.sleep(0.02)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
