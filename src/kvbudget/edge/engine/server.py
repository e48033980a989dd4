"""Decides how an embedded engine starts and ends inside a running event loop."""

import asyncio
import socket

from kvbudget.edge.asgi import AsgiServer, listen
from kvbudget.edge.engine.app import EngineApp
from kvbudget.edge.engine.driver import EngineDriver
from kvbudget.edge.engine.metrics import EngineMetrics
from kvbudget.edge.engine.settings import EngineSettings
from kvbudget.simulate.paged_engine import PagedEngine


class RunningEngine:
    """An engine that listens. `engine` is its inside, for those in the same process who want to look."""

    def __init__(self, settings: EngineSettings, listener: socket.socket) -> None:
        self.settings = settings
        self.engine = PagedEngine(
            settings.layout,
            settings.num_blocks,
            settings.max_num_seqs,
            settings.max_num_batched_tokens,
            settings.max_model_len,
        )
        metrics = EngineMetrics(self.engine, settings)
        driver = EngineDriver(self.engine, metrics, settings.step_cost_s, settings.token_cost_s)
        self._app = EngineApp(settings, driver, metrics)
        self._server = AsgiServer(self._app.asgi, listener)
        self.host, self.port, self.url = self._server.host, self._server.port, self._server.url
        self._driver_task = asyncio.create_task(driver.run(), name="engine steps")
        self._driver_task.add_done_callback(self._stopped)

    async def ready(self) -> None:
        """Wait until connections are accepted."""
        await self._server.ready()

    async def close(self) -> None:
        """Stop at once: answers in flight are cut off, as by an engine that is killed. May be called twice."""
        self._driver_task.cancel()
        await asyncio.gather(self._driver_task, self._server.close(), return_exceptions=True)

    def _stopped(self, task: asyncio.Task[None]) -> None:
        """A driver that died is a dead engine: /health says so, and the loop's handler reports the exception."""
        self._app.alive = False
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "the embedded engine stopped", "exception": error, "task": task}
            task.get_loop().call_exception_handler(context)


async def start_engine(settings: EngineSettings, host: str = "127.0.0.1", port: int = 0) -> RunningEngine:
    """Start an engine in the running loop (asyncio's or uvloop's); port 0 takes a free one.

    Raises BadValueError when the settings would not start or the address cannot be had. The caller closes it.
    """
    listener = listen(host, port)
    try:
        engine = RunningEngine(settings, listener)
    except BaseException:
        listener.close()
        raise
    try:
        await engine.ready()
    except BaseException:
        await engine.close()
        raise
    return engine
