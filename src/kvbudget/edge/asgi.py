"""A Starlette application on uvicorn inside the running loop: for the control plane and the embedded engine."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from kvbudget.edge.http.refused import NOTHING_ASKED, closing_answer, openai_answer
from kvbudget.errors import BadValueError


class AsgiServer:
    """One listening application. Made by `start_asgi`; `close` may be called twice."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        name = listener.getsockname()
        self.host: str = f"unix:{name}" if isinstance(name, str) else name[0]
        self.port: int = 0 if isinstance(name, str) else name[1]
        self._listener = listener
        config = uvicorn.Config(
            app,
            loop="none",
            http=_Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=5,
        )
        self._server = _QuietServer(config)
        self._task = asyncio.create_task(self._server.serve([listener]), name=f"asgi server :{self.port}")

    @property
    def url(self) -> str:
        """`http://HOST:PORT`, or `unix:/path`."""
        if self.host.startswith("unix:"):
            return self.host
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    async def ready(self) -> None:
        """Wait until connections are accepted."""
        listening = asyncio.create_task(self._server.listening.wait())
        try:
            await asyncio.wait({listening, self._task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            listening.cancel()
        if self._task.done():
            self._task.result()

    async def close(self) -> None:
        """Stop at once: answers in flight are cut off."""
        self._server.should_exit = self._server.force_exit = True
        self._abort_all()
        await asyncio.gather(self._task, return_exceptions=True)
        self._abort_all()  # uvicorn looks at should_exit ten times a second and accepts until then
        self._listener.close()

    def _abort_all(self) -> None:
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()


async def start_asgi(app: ASGIApp, host: str, port: int, flags: str = "host or port") -> AsgiServer:
    """Serve `app`; port 0 takes a free one. Raises BadValueError when the address cannot be had.
    `flags`: where it was given."""
    listener = listen(host, port, flags)
    server = AsgiServer(app, listener)
    try:
        await server.ready()
    except BaseException:
        await server.close()
        raise
    return server


def listen(host: str, port: int, flags: str = "host or port") -> socket.socket:
    """A listening socket; `host` may be `unix:/path`. Raises BadValueError when the address cannot be had."""
    check_port(port)
    try:
        if host.startswith("unix:"):
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(host.removeprefix("unix:"))
            listener.listen(2048)
            return listener
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048
        )
    except OSError as error:
        raise BadValueError(
            f"cannot listen on {host}:{port}: {error.strerror or error}", fix=f"choose another {flags}"
        ) from None


def check_port(port: int) -> None:
    """Raises BadValueError for what is no port; the kernel would take it modulo 65536."""
    if not 0 <= port <= 65535:
        raise BadValueError(f"cannot listen on port {port}", fix="choose a port from 0 to 65535")


class _Protocol(HttpToolsProtocol):
    """uvicorn's, whose own error has the form of all others."""

    def send_400_response(self, msg: str) -> None:
        headers, body = openai_answer(400, "bad_input", msg, NOTHING_ASKED)
        self.transport.write(closing_answer(400, headers, body))
        self.transport.close()


class _QuietServer(uvicorn.Server):
    """uvicorn inside somebody else's loop: no signal handlers, and an event instead of polling for the start."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
