"""The documentation's Envoy, a real one, between clients, the gate and embedded engines."""

import asyncio
import json
import subprocess
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from kvbudget.edge.engine.server import RunningEngine, start_engine
from kvbudget.edge.engine.settings import EngineSettings
from kvbudget.edge.extproc.service import ExtProcService, Timeouts, start_extproc
from kvbudget.edge.instances.settings import InstanceSettings
from kvbudget.edge.service import ServiceSettings
from kvbudget.gate.gate import GateConfig
from kvbudget.gate.policies import Policy
from real_envoy import EXAMPLE, envoy, program

CHAT = "/v1/chat/completions"
TIMEOUTS = Timeouts(2.0, 45.0)  # as in the example


def streamed_whole(filter_settings: dict[str, Any]) -> None:
    """As endpoint pickers are asked: every body passes through the gate, piece by piece."""
    for side in ("request", "response"):
        filter_settings["processing_mode"][f"{side}_body_mode"] = "FULL_DUPLEX_STREAMED"
        filter_settings["processing_mode"][f"{side}_trailer_mode"] = "SEND"


def answers_streamed(filter_settings: dict[str, Any]) -> None:
    """Requests whole, answers shown piece by piece."""
    filter_settings["processing_mode"]["response_body_mode"] = "STREAMED"


MODES = pytest.mark.parametrize(
    "mode", [None, answers_streamed, streamed_whole], ids=["as documented", "answers shown", "full duplex"]
)


@dataclass
class Stand:
    """64 blocks of 16 tokens each engine; 20 ms a step."""

    engines: list[RunningEngine]
    service: ExtProcService
    client: httpx.AsyncClient
    port: int

    async def chat(self, headers: dict[str, str] | None = None, **more: object) -> httpx.Response:
        return await self.client.post(CHAT, content=ask(**more), headers=headers)

    async def open(self, **more: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A raw connection with one request sent on it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        body = ask(**more)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        return reader, writer

    def promised(self) -> int:
        return sum(one.member.gate.promised_blocks() for one in self.service.instances)

    def flows(self) -> int:
        return len(list(self.service.gateway.flows))

    def counted(self, of: str) -> dict[str, int]:
        return {name: count for name, count in getattr(self.service.gateway.metrics, of).items() if count}

    async def until(self, what: Callable[[], bool], within_s: float = 30.0) -> None:
        async with asyncio.timeout(within_s):
            while not what():
                await asyncio.sleep(0.001)


def ask(**more: object) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 16, **more}).encode()


Scene = Callable[[Stand], Awaitable[None]]


def play(
    scene: Scene, folder: Path, mode: Any = None, engines: int = 1, timeouts: Timeouts = TIMEOUTS, **config: object
) -> None:
    """A scene behind a real Envoy; nothing may be promised at its end."""

    async def all_of_it() -> None:
        settings = EngineSettings(num_blocks=65, block_size=16, max_model_len=1024, step_cost_s=0.02)
        running = [await start_engine(settings) for _ in range(engines)]
        gate = GateConfig(**{"policy": Policy.WORST_CASE, **config})  # type: ignore[arg-type]
        served = ServiceSettings(
            running[0].url,
            tuple(InstanceSettings(one.url) for one in running) if engines > 1 else (),
            port=0, admin_port=0, gate=gate, default_max_tokens=64,
        )  # fmt: skip
        service = await start_extproc(served, timeouts)
        try:
            grpc_port = int(service.url.rpartition(":")[2])
            async with (
                envoy(folder, grpc_port, mode) as url,
                httpx.AsyncClient(base_url=url, timeout=30) as client,
                asyncio.timeout(60),
            ):
                stand = Stand(running, service, client, int(url.rpartition(":")[2]))
                await scene(stand)
                await stand.until(lambda: not stand.flows() and not stand.promised())
            assert service.gateway.metrics.ledger_errors == 0
            await asyncio.sleep(0)
        finally:
            await service.close()
            for one in running:
                await one.close()

    uvloop.run(all_of_it())


def test_the_example_is_one_that_envoy_takes() -> None:
    done = subprocess.run(
        [program(), "--mode", "validate", "-c", EXAMPLE], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "warning" not in done.stderr.lower().replace("[warning][main]", ""), done.stderr


@MODES
def test_a_request_is_counted_capped_and_answered(tmp_path: Path, mode: Any) -> None:
    async def scene(stand: Stand) -> None:
        answer = await stand.client.post(CHAT, json={"messages": [{"role": "user", "content": "hi"}]})
        usage = answer.json()["usage"]
        assert 0 < usage["completion_tokens"] <= 64  # the embedded engine would go on to 256
        assert answer.json()["choices"][0]["finish_reason"] == "length"
        assert answer.headers["x-kvbudget-prompt-tokens"] == str(usage["prompt_tokens"])
        assert int(answer.headers["x-kvbudget-reserved-blocks"]) == -(-(usage["prompt_tokens"] + 64) // 16)
        assert "x-request-id" in answer.headers
        assert (await stand.client.get("/v1/models")).json()["data"][0]["id"] == "embedded"

    play(scene, tmp_path, mode)


@MODES
def test_a_streamed_answer_is_that_of_the_engine_to_the_byte(tmp_path: Path, mode: Any) -> None:
    async def scene(stand: Stand) -> None:
        own = {"x-request-id": "same"}
        through = await stand.chat(own, stream=True)
        async with httpx.AsyncClient(timeout=30) as client:
            direct = await client.post(stand.engines[0].url + CHAT, content=ask(stream=True), headers=own)
        assert through.status_code == 200
        created = [text.split('"created":')[1].split(",")[0] for text in (through.text, direct.text)]
        assert through.text.replace(created[0], created[1]) == direct.text
        assert through.text.endswith("data: [DONE]\n\n")

    play(scene, tmp_path, mode)


@MODES
def test_refusals_have_our_bodies_and_headers(tmp_path: Path, mode: Any) -> None:
    async def scene(stand: Stand) -> None:
        never = await stand.chat(messages=[{"role": "user", "content": "word " * 3000}])
        assert never.status_code == 400
        assert never.json()["error"]["code"] == "context_length_exceeded"
        assert "maximum context length is 1024 tokens" in never.json()["error"]["message"]
        assert never.headers["x-should-retry"] == "false"
        broken = await stand.client.post(CHAT, content=b"{")
        assert (broken.status_code, broken.json()["error"]["code"]) == (400, "invalid_json")
        _, writer = await stand.open(max_tokens=900)
        await stand.until(lambda: stand.promised() > 0)
        full = await stand.chat(max_tokens=900)
        assert full.status_code == 429
        assert 1 <= int(full.headers["retry-after"]) <= 120
        assert int(full.headers["retry-after-ms"]) > 0
        assert full.headers["content-type"] == "application/json"
        assert full.json()["error"]["code"] == "rate_limit_exceeded"
        writer.transport.abort()

    play(scene, tmp_path, mode, queue_requests=0)


@MODES
def test_who_waits_longer_than_the_message_timeout_is_waited_for(tmp_path: Path, mode: Any) -> None:
    async def scene(stand: Stand) -> None:
        _, writer = await stand.open(max_tokens=900)
        await stand.until(lambda: stand.promised() > 0)
        waiting = asyncio.create_task(stand.chat(max_tokens=900 - 1, ignore_eos=False))
        await stand.until(lambda: len(stand.service.gate.queue) == 1)
        await asyncio.sleep(2.5)  # message_timeout is 2 s: Envoy would have answered 504
        assert not waiting.done()
        writer.transport.abort()
        answer = await waiting
        assert answer.status_code == 200
        assert int(answer.headers["x-kvbudget-queue-ms"]) >= 2500

    play(scene, tmp_path, mode)


@MODES
def test_nobody_gets_envoy_s_timeout_but_our_refusal_before_it(tmp_path: Path, mode: Any) -> None:
    def short(filter_settings: dict[str, Any]) -> None:
        filter_settings["message_timeout"] = "1s"
        del filter_settings["max_message_timeout"]
        if mode is not None:
            mode(filter_settings)

    async def scene(stand: Stand) -> None:
        _, writer = await stand.open(max_tokens=900)
        await stand.until(lambda: stand.promised() > 0)
        began = time.monotonic()
        late = await stand.chat(max_tokens=900)
        assert late.status_code == 429
        assert time.monotonic() - began < 1.0
        assert "retry-after" in late.headers
        writer.transport.abort()
        await stand.until(lambda: not stand.flows())
        assert stand.counted("refusals") == {"deadline": 1}

    play(scene, tmp_path, short, timeouts=Timeouts(1.0))


@MODES
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_client_that_leaves_gives_its_room_back(tmp_path: Path, mode: Any, stream: bool) -> None:
    taken_s: list[float] = []

    async def scene(stand: Stand) -> None:
        await stand.chat()  # by which the gate learns that it sees the headers of answers
        await stand.until(lambda: not stand.flows())
        for _ in range(5):
            reader, writer = await stand.open(max_tokens=900, stream=stream)
            await stand.until(lambda: stand.flows() == 1)
            if stream:
                await reader.readuntil(b"data: ")
            left = time.monotonic()
            writer.transport.abort()
            await stand.until(lambda: not stand.flows())
            taken_s.append(time.monotonic() - left)
            await stand.until(lambda: not stand.promised())
        outcomes = stand.counted("outcomes")
        # Where answers are not shown, a stream whose client has left looks like one that is over.
        assert outcomes == ({"finished": 6} if stream and mode is None else {"finished": 1, "client_gone": 5})

    play(scene, tmp_path, mode)
    print(f"released after {[round(1000 * s, 1) for s in taken_s]} ms")
    assert sorted(taken_s)[2] < 0.1  # the median; 2 to 20 ms where nothing else runs


def test_a_client_that_leaves_the_queue_is_forgotten(tmp_path: Path) -> None:
    async def scene(stand: Stand) -> None:
        await stand.chat()
        await stand.until(lambda: not stand.flows())
        _, first = await stand.open(max_tokens=900)
        await stand.until(lambda: stand.promised() > 0)
        _, second = await stand.open(max_tokens=900)
        await stand.until(lambda: len(stand.service.gate.queue) == 1)
        second.transport.abort()
        await stand.until(lambda: len(stand.service.gate.queue) == 0)
        first.transport.abort()
        await stand.until(lambda: not stand.flows())
        assert stand.counted("outcomes") == {"finished": 1, "withdrawn": 1, "client_gone": 1}

    play(scene, tmp_path)


@MODES
def test_two_engines_share_the_work_and_a_client_s_own_destination_is_overwritten(tmp_path: Path, mode: Any) -> None:
    async def scene(stand: Stand) -> None:
        elsewhere = {"x-gateway-destination-endpoint": "127.0.0.1:1"}
        answers = await asyncio.gather(*[stand.chat(elsewhere, max_tokens=400) for _ in range(4)])
        assert [answer.status_code for answer in answers] == [200] * 4
        seen = set()
        for engine in stand.engines:
            async with httpx.AsyncClient() as client:
                metrics = (await client.get(engine.url + "/metrics")).text
            line = next(line for line in metrics.splitlines() if line.startswith("vllm:generation_tokens_total"))
            seen.add(float(line.rpartition(" ")[2]) > 0)
        assert seen == {True}

    play(scene, tmp_path, mode, engines=2)


def test_an_engine_that_is_gone_is_told_in_our_words(tmp_path: Path) -> None:
    async def scene(stand: Stand) -> None:
        await stand.chat()
        stand.service.instances[0].backend._look_now.clear()
        await stand.engines[0].close()
        answer = await stand.chat()
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "server_is_overloaded"
        assert "retry-after" in answer.headers
        await stand.until(lambda: not stand.service.gate.backend_up)

    play(scene, tmp_path)


def test_a_drain_answers_503_and_lets_the_present_one_end(tmp_path: Path) -> None:
    async def scene(stand: Stand) -> None:
        present = asyncio.create_task(stand.chat(max_tokens=60))
        await stand.until(lambda: stand.flows() == 1)
        draining = asyncio.create_task(stand.service.drain(20))
        await stand.until(lambda: stand.service.gateway.admission.draining)
        refused = await stand.chat()
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        assert (await present).status_code == 200
        assert await draining

    play(scene, tmp_path)


def test_a_gate_that_ends_in_the_middle_of_an_answer_leaves_it_to_envoy(tmp_path: Path) -> None:
    async def scene(stand: Stand) -> None:
        reader, writer = await stand.open(max_tokens=60, stream=True)
        await reader.readuntil(b"data: ")
        assert not await stand.service.drain(0)
        rest = await reader.readuntil(b"data: [DONE]")
        assert rest.count(b"data: ") > 10
        writer.close()

    play(scene, tmp_path)


def test_without_the_gate_nothing_gets_through(tmp_path: Path) -> None:
    async def scene(stand: Stand) -> None:
        assert (await stand.chat()).status_code == 200
        await stand.until(lambda: not stand.flows())
        await stand.service.close()
        assert (await stand.chat()).status_code == 503

    play(scene, tmp_path)


def test_a_long_prompt_arrives_whole(tmp_path: Path) -> None:
    async def scene(stand: Stand) -> None:
        ballast = "x" * 3_000_000  # a member that nobody counts
        answer = await stand.chat(metadata={"note": ballast})
        assert answer.status_code == 200

    play(scene, tmp_path)
    play(scene, tmp_path, streamed_whole)
