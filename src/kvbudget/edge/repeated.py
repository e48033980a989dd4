"""Looks at something again and again in the background, and is stopped by nothing but its end."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger("kvbudget.looks")


class Repeated:
    """Calls `look` every `every_s` from `start` until `close`. What goes wrong in it is logged as `problem`, and must
    never be why nobody looks any more."""

    def __init__(
        self,
        name: str,
        look: Callable[[], Awaitable[None] | None],
        every_s: float,
        problem: str,
        *,
        at_once: bool = True,
    ) -> None:
        """`at_once`: the first time with `start`, else after the first pause."""
        self._name = name
        self._look = look
        self._every_s = every_s
        self._problem = problem
        self._at_once = at_once
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._go_on(), name=self._name)

    async def close(self) -> None:
        """May be called in any state."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _go_on(self) -> None:
        if not self._at_once:
            await asyncio.sleep(self._every_s)
        while True:
            try:
                looking = self._look()
                if looking is not None:
                    await looking
            except Exception:
                log.exception(self._problem)
            await asyncio.sleep(self._every_s)
