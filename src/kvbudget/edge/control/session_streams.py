"""Decides how long a stream of events goes on that somebody reads who signed in: no longer than the session.

A stream that ends so ends as a whole answer does. Any other answer is given to its end.
"""

import asyncio
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvbudget.edge.control.sessions import Sessions

_END: Final[Message] = {"type": "http.response.body", "body": b"", "more_body": False}


async def serve_while_it_holds(
    app: ASGIApp, scope: Scope, receive: Receive, send: Send, sessions: Sessions, secret: str
) -> None:
    """Let the app answer somebody whose session `secret` is."""
    over = asyncio.Event()
    streaming = _Streaming(send)
    timer = asyncio.get_running_loop().call_later(sessions.left_ns(secret) / 1e9, over.set)
    sessions.watch(secret, over.set)
    serving = asyncio.ensure_future(app(scope, receive, streaming.send))
    cutting = asyncio.ensure_future(_both(over, streaming.began))
    try:
        await asyncio.wait({serving, cutting}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
            return
        serving.cancel()
        await asyncio.wait({serving})
        await streaming.end()
    finally:
        timer.cancel()
        sessions.unwatch(secret, over.set)
        for task in (serving, cutting):
            task.cancel()
        await asyncio.gather(serving, cutting, return_exceptions=True)


async def _both(first: asyncio.Event, second: asyncio.Event) -> None:
    await first.wait()
    await second.wait()


class _Streaming:
    """An answer on its way out, and whether it is a stream of events."""

    def __init__(self, send: Send) -> None:
        self.began = asyncio.Event()
        self._send = send
        self._open = False

    async def send(self, message: Message) -> None:
        """For the app."""
        starts = message["type"] == "http.response.start"
        self._open = starts or bool(message.get("more_body"))
        await self._send(message)
        if starts and any(
            name.lower() == b"content-type" and value.startswith(b"text/event-stream")
            for name, value in message.get("headers", ())
        ):
            self.began.set()

    async def end(self) -> None:
        """Say the end, unless it was said."""
        if self._open:
            self._open = False
            await self._send(_END)
