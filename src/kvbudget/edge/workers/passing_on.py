"""How a request to the one admin port is passed on to the control plane of one worker, streams included."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

_HEAD_S: Final = 30.0  # a simulation of the pages takes its time
_LARGEST_HEAD: Final = 64 * 1024
_PIECE: Final = 64 * 1024
# Of the connection, not of the message; and what is said to the port itself, which nobody behind it need know.
_OWN: Final = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"te", b"upgrade",
                         b"host", b"expect", b"authorization", b"cookie"})  # fmt: skip


class Gone(Exception):  # noqa: N818 - no error of ours
    """The worker does not answer."""


async def passed_on(request: Request, socket_path: str) -> Response:
    """The worker's answer, as it comes. Raises Gone."""
    try:
        reader, writer = await asyncio.open_unix_connection(socket_path, limit=_LARGEST_HEAD)
    except OSError as error:
        raise Gone(str(error)) from None
    try:
        async with asyncio.timeout(_HEAD_S):
            await _send(request, writer)
            status, headers = await _head(reader)
    except (OSError, EOFError, TimeoutError, ValueError, asyncio.LimitOverrunError) as error:
        writer.close()
        raise Gone(str(error)) from None
    except BaseException:
        writer.close()
        raise
    answer = StreamingResponse(_body(reader, writer, headers), status_code=status)
    answer.raw_headers = [(name, value) for name, value in headers if name not in _OWN]
    return answer


async def _send(request: Request, writer: asyncio.StreamWriter) -> None:
    target = request.scope.get("raw_path", request.url.path.encode())
    if query := request.scope["query_string"]:
        target += b"?" + query
    lines = [request.method.encode() + b" " + target + b" HTTP/1.1", b"host: localhost", b"connection: close"]
    lines += [name + b": " + value for name, value in request.headers.raw if name not in _OWN]
    lines += [b"transfer-encoding: chunked"] if request.method == "POST" else []
    writer.write(b"\r\n".join(lines) + b"\r\n\r\n")
    if request.method != "POST":
        return
    try:
        async for part in request.stream():
            if part:
                writer.write(b"%x\r\n%b\r\n" % (len(part), part))
                await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
    except ConnectionError:
        pass  # it has heard enough, and says why


async def _head(reader: asyncio.StreamReader) -> tuple[int, list[tuple[bytes, bytes]]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
    headers = []
    for line in lines:
        name, _, value = line.partition(b":")
        headers.append((name.strip().lower(), value.strip()))
    return int(first.split(b" ")[1]), headers


async def _body(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: list[tuple[bytes, bytes]]
) -> AsyncIterator[bytes]:
    try:
        if (b"transfer-encoding", b"chunked") not in headers:
            while data := await reader.read(_PIECE):  # to its end: the connection is for this one answer
                yield data
            return
        while size := int((await reader.readuntil(b"\r\n"))[:-2].partition(b";")[0], 16):
            yield await reader.readexactly(size)
            await reader.readexactly(2)
    finally:
        writer.close()
