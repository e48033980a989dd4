"""What both files of relay tests send and how they read it: requests, answers, scripted upstreams, an h11 reader."""

import asyncio
from collections.abc import Callable
from typing import Any

import h11

GET = b"GET /v1/x HTTP/1.1\r\nHost: a\r\n\r\n"
OLD_GET = b"GET /v1/x HTTP/1.0\r\n\r\n"
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)


def replying(*parts: bytes, then: str = "wait") -> Callable[[Any], Any]:
    """An upstream that sends `parts` after each request, then waits for the next, closes, or resets."""

    async def script(peer: Any) -> None:
        while True:
            await peer.request()
            await peer.send(*parts)
            if then == "close":
                peer.close()
                await peer.closed()
                return
            if then == "reset":
                await asyncio.sleep(0.02)  # the parts must not be overtaken by the reset
                peer.abort()
                return

    return script


def parsed(wire: bytes, method: str = "GET") -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Status, headers, body by h11; raises h11.RemoteProtocolError for a body that is not complete."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=method, target="/", headers=[("Host", "a")]))
    client.send(h11.EndOfMessage())
    client.receive_data(wire)
    client.receive_data(b"")
    status, headers, body = 0, [], b""
    while True:
        event = client.next_event()
        if isinstance(event, h11.Response):
            status, headers = event.status_code, list(event.headers)
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            return status, headers, body
        else:
            assert isinstance(event, h11.InformationalResponse)


def closing(request: bytes) -> bytes:
    return request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
