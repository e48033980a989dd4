"""An answer that takes long is given up when nobody waits for it any more."""

import asyncio
from collections.abc import Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kvbudget.edge.asgi import start_asgi
from kvbudget.edge.web.answering import answered


def test_whoever_hangs_up_ends_what_was_begun_for_him() -> None:
    async def run() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def for_ever(_: dict[str, Any]) -> Mapping[str, Any]:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return {}

        async def asked(request: Request) -> Response:
            return await answered(request, for_ever)

        server = await start_asgi(Starlette(routes=[Route("/", asked, methods=["POST"])]), "127.0.0.1", 0)
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}")
            async with asyncio.timeout(10):
                await begun.wait()
                assert not ended.is_set()
                writer.close()
                await ended.wait()
        finally:
            await server.close()

    asyncio.run(run())
