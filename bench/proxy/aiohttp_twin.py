"""A pass-through proxy of aiohttp on both sides, for scale only: it counts, reserves and refuses nothing."""

import asyncio
import sys

import aiohttp
from aiohttp import web

HOP_BY_HOP = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "content-length", "host"}
MAX_BODY_BYTES = 16 << 20
ENGINE = web.AppKey("engine", aiohttp.ClientSession)


def kept(headers: "aiohttp.typedefs.LooseHeaders") -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers.items() if name.lower() not in HOP_BY_HOP]


async def relay(request: web.Request) -> web.StreamResponse:
    body = await request.read()
    client = request.app[ENGINE]
    async with client.request(request.method, request.path_qs, data=body, headers=kept(request.headers)) as upstream:
        if upstream.content_length is not None:
            whole = await upstream.read()
            return web.Response(status=upstream.status, headers=kept(upstream.headers), body=whole)
        answer = web.StreamResponse(status=upstream.status, headers=kept(upstream.headers))
        await answer.prepare(request)
        async for piece in upstream.content.iter_any():
            await answer.write(piece)
        await answer.write_eof()
        return answer


async def main(engine_port: int) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(
        f"http://127.0.0.1:{engine_port}", connector=connector, timeout=timeout, auto_decompress=False
    ) as client:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app[ENGINE] = client
        app.router.add_route("*", "/{path:.*}", relay)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
            print(runner.addresses[0][1], flush=True)
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(main(int(sys.argv[1])))
    else:
        uvloop.run(main(int(sys.argv[1])))
