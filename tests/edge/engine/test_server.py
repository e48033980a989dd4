import asyncio
import signal
import socket

import httpx
import pytest
import uvloop

from kvbudget.edge.engine.server import start_engine
from kvbudget.edge.engine.settings import EngineSettings
from kvbudget.errors import BadValueError

BODY = {"prompt": "hello", "max_tokens": 3}


@pytest.mark.parametrize("on_uvloop", [True, False])
def test_it_starts_inside_the_loop_of_the_caller_and_leaves_signals_alone(on_uvloop: bool) -> None:
    async def main() -> None:
        before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        running = await start_engine(EngineSettings())
        try:
            assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
            assert running.url == f"http://127.0.0.1:{running.port}"
            async with httpx.AsyncClient(base_url=running.url) as client:
                assert (await client.post("/v1/completions", json=BODY)).status_code == 200
        finally:
            await running.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", running.port)
        await running.close()

    (uvloop.run if on_uvloop else asyncio.run)(main())


def test_two_engines_in_one_process_do_not_share_anything() -> None:
    async def main() -> None:
        one, two = await start_engine(EngineSettings()), await start_engine(EngineSettings(served_model_name="b"))
        try:
            async with httpx.AsyncClient() as client:
                await client.post(one.url + "/v1/completions", json=BODY)
                assert (one.engine.total_generation_tokens, two.engine.total_generation_tokens) == (3, 0)
                assert 'model_name="b"' in (await client.get(two.url + "/metrics")).text
        finally:
            await one.close()
            await two.close()

    uvloop.run(main())


def test_closing_cuts_off_answers_in_flight_and_frees_their_blocks() -> None:
    async def main() -> None:
        running = await start_engine(EngineSettings(step_cost_s=0.01))
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        body = b'{"prompt": "hello", "max_tokens": 4000, "stream": true, "ignore_eos": true}'
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await reader.readuntil(b"data: ")
        await running.close()
        assert not running.engine.has_unfinished_requests
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readuntil(b"[DONE]")
        writer.transport.abort()

    uvloop.run(main())


def test_an_address_in_use_is_told_as_such() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(BadValueError, match="cannot listen on"):
        uvloop.run(start_engine(EngineSettings(), port=taken.getsockname()[1]))


def test_a_pool_that_is_too_small_does_not_start_and_leaves_no_socket() -> None:
    with pytest.raises(BadValueError, match="estimated maximum model length is 48"):
        uvloop.run(start_engine(EngineSettings(num_blocks=4)))


def test_an_engine_whose_steps_died_is_not_healthy_any_more() -> None:
    async def main() -> None:
        running = await start_engine(EngineSettings())
        told: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))

        try:
            running.engine.add("of nobody", 5, 5)  # the driver of its steps does not know whose tokens these are
            async with httpx.AsyncClient(base_url=running.url, timeout=0.5) as client:
                assert (await client.get("/health")).status_code == 200
                with pytest.raises(httpx.ReadTimeout):
                    await client.post("/v1/completions", json=BODY)
                assert (await client.get("/health")).status_code == 503
        finally:
            await running.close()
        assert told == ["the embedded engine stopped"]

    uvloop.run(main())


def test_an_engine_can_be_started_again_on_the_port_it_had() -> None:
    async def main() -> None:
        running = await start_engine(EngineSettings())
        for _ in range(3):
            async with httpx.AsyncClient(base_url=running.url) as client:
                assert (await client.post("/v1/completions", json=BODY)).status_code == 200
            await running.close()
            running = await start_engine(EngineSettings(), port=running.port)
        await running.close()

    uvloop.run(main())
