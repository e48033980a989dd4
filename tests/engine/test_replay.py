"""Twice the load that fits: with the gate the engine never preempts, without it it does."""

import asyncio
import csv
import json
import statistics
import time
from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engine.conftest import Engine, GateFactory, Prompts

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

TRACE = Path(__file__).parent / "data" / "azure-2023-conversation-80.csv"
BLOCK_SIZE = 32
USABLE_BLOCKS = 64
OVERLOAD = 2.0
MEASURED = 30


@dataclass(frozen=True, slots=True)
class Request:
    """One line of the trace, ready to be sent `at_s` seconds after the start."""

    at_s: float
    path: str
    body: dict[str, Any]
    blocks: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, and when."""

    status: int
    headers: httpx.Headers
    usage: dict[str, int]
    error: dict[str, Any]
    complete: bool
    first_byte_s: float
    end_s: float


@pytest.fixture(scope="module")
def load(vllm: "Engine", prompts: "Prompts") -> list[Request]:
    """The trace, stretched or pressed so that it asks for `OVERLOAD` times what the engine can do with its pool.

    What fits at once is the pool divided by a request's blocks. How many requests a second that gives is measured, with
    just so many of the trace's own in flight.
    """
    with TRACE.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) >= 60
    times = [datetime.fromisoformat(line["TIMESTAMP"][:26]).timestamp() for line in lines]
    requests = [
        _request(index, prompts, int(line["ContextTokens"]), int(line["GeneratedTokens"]), times[index] - times[0])
        for index, line in enumerate(lines)
    ]
    fitting = USABLE_BLOCKS / statistics.mean(request.blocks for request in requests)
    asyncio.run(_replay(vllm.url, requests[:8], together=4))  # its first requests pay for imports and caches
    _, wall_s = asyncio.run(_replay(vllm.url, requests[-MEASURED:], together=round(fitting)))
    span_s = len(requests) * wall_s / MEASURED / OVERLOAD
    return [replace(request, at_s=request.at_s * span_s / requests[-1].at_s) for request in requests]


def test_without_a_gate_the_engine_preempts(vllm: "Engine", load: list[Request], figures: list[str]) -> None:
    before = vllm.metric("num_preemptions_total")
    answers, wall_s = asyncio.run(_replay(vllm.url, load))
    preemptions = vllm.metric("num_preemptions_total") - before
    figures.append(
        f"replay: {len(load)} requests of the Azure 2023 conversation trace in {load[-1].at_s:.1f} s, "
        f"{sum(request.blocks for request in load)} blocks asked for, {USABLE_BLOCKS} there"
    )
    figures.append(_row("without gate", answers, wall_s, preemptions))
    assert {answer.status for answer in answers} == {200}
    assert preemptions > 0, "the load does not contend for the pool, so the runs with a gate would show nothing"


@pytest.mark.parametrize("policy", ["worst-case", "trajectory"])
def test_behind_the_gate_the_engine_never_preempts(
    policy: str,
    vllm: "Engine",
    start_gate: "GateFactory",
    load: list[Request],
    eventually: "Callable[..., float]",
    figures: list[str],
) -> None:
    before = vllm.metric("num_preemptions_total")
    with start_gate(vllm, f"--policy={policy}", "--queue-seconds=60", name=f"gate-{policy}") as gate:
        answers, wall_s = asyncio.run(_replay(gate.url, load))
        preemptions = vllm.metric("num_preemptions_total") - before
        figures.append(_row(policy, answers, wall_s, preemptions))

        assert preemptions == 0
        statuses = Counter(answer.status for answer in answers)
        assert set(statuses) <= {200, 429}, statuses
        assert statuses[200] >= 30, statuses
        _assert_whole(answers, load)
        _assert_contended(answers)
        assert gate.metric("token_drift_total") == 0
        counted, used = (
            gate.metric("prompt_tokens_sum"),
            sum(answer.usage.get("prompt_tokens", 0) for answer in answers),
        )
        assert counted == used if statuses[429] == 0 else counted >= used
        eventually(lambda: gate.reserved_blocks() == 0, "no block stays reserved", within_s=1.0)
        assert gate.metric("ledger_reserved_blocks") == 0
        assert gate.metric("queue_requests") == 0
        state = gate.state()
        assert state["pool"]["reserved_blocks"] == state["reservations"] == state["queue"]["requests"] == 0
        assert not any(state["reserved_blocks_by_tenant"].values())
        eventually(lambda: vllm.requests_inside() == 0, "the engine is idle")


@pytest.mark.parametrize("policy", ["worst-case", "trajectory"])
def test_the_whole_trace_at_once_is_served_in_turn(
    policy: str, vllm: "Engine", start_gate: "GateFactory", load: list[Request], figures: list[str]
) -> None:
    """With a queue that holds them all nobody is refused or forgotten; those that begin together also grow together."""
    burst = [replace(request, at_s=0.0) for request in load]
    before = vllm.metric("num_preemptions_total")
    flags = (f"--policy={policy}", "--queue-seconds=120", "--queue-tokens=64k")
    with start_gate(vllm, *flags, name=f"gate-burst-{policy}") as gate:
        answers, wall_s = asyncio.run(_replay(gate.url, burst))
        preemptions = vllm.metric("num_preemptions_total") - before
        figures.append(_row(f"{policy}, at once", answers, wall_s, preemptions))
        assert preemptions == 0
        assert {answer.status for answer in answers} == {200}
        _assert_whole(answers, burst)
        assert gate.metric("prompt_tokens_sum") == sum(answer.usage["prompt_tokens"] for answer in answers)
        assert gate.metric("output_tokens_sum") == sum(answer.usage["completion_tokens"] for answer in answers)


def _assert_whole(answers: list[Answer], load: list[Request]) -> None:
    for answer, request in zip(answers, load, strict=True):
        if answer.status == 200:
            assert answer.complete, "a stream without its end"
            assert answer.usage["completion_tokens"] == request.body["max_tokens"]
            assert int(answer.headers["x-kvbudget-reserved-blocks"]) == -(-answer.usage["total_tokens"] // BLOCK_SIZE)
            assert int(answer.headers["x-kvbudget-prompt-tokens"]) == answer.usage["prompt_tokens"]
        else:
            assert int(answer.headers["retry-after"]) >= 1
            assert int(answer.headers["retry-after-ms"]) > 0
            assert {"message", "type", "param", "code"} <= answer.error.keys()
            assert "blocks" in answer.error["message"]


def _assert_contended(answers: list[Answer]) -> None:
    queued = sum(_queue_ms(answer) > 0 for answer in answers)
    refused = sum(answer.status == 429 for answer in answers)
    assert queued + refused > 0, "nobody had to wait: this load does not fill the pool"


def _row(mode: str, answers: list[Answer], wall_s: float, preemptions: float) -> str:
    good = [answer for answer in answers if answer.status == 200]
    waits = [_queue_ms(answer) for answer in good]
    first = sorted(answer.first_byte_s for answer in good)
    return (
        f"  {mode:<20}200: {len(good):>3}  429: {sum(a.status == 429 for a in answers):>3}"
        f"  preemptions: {preemptions:>3.0f}"
        f"  queued: {sum(wait > 0 for wait in waits):>3} (longest {max(waits, default=0) / 1000:.1f} s)"
        f"  first byte p50 {first[len(first) // 2]:.2f} s  wall {wall_s:.1f} s"
        f"  {sum(a.usage.get('completion_tokens', 0) for a in good) / wall_s:.0f} output tokens/s"
    )


def _queue_ms(answer: Answer) -> float:
    return float(answer.headers.get("x-kvbudget-queue-ms", "0"))


def _request(index: int, prompts: "Prompts", prompt_tokens: int, output_tokens: int, at_s: float) -> Request:
    """Every other pair is a chat, every other request a stream; all of them use up their `max_tokens`."""
    chat = index // 2 % 2 == 0
    # The chat template puts 11 tokens around the only message, the tokenizer 1 before a bare prompt.
    text = prompts.of(prompt_tokens - (11 if chat else 1), f"request{index}")
    body: dict[str, Any] = {"model": "tiny", "max_tokens": output_tokens, "ignore_eos": True, "seed": index}
    body |= {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
    if index % 2:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    return Request(at_s, path, body, -(-(prompt_tokens + output_tokens) // BLOCK_SIZE))


async def _replay(base: str, load: list[Request], together: int = 0) -> tuple[list[Answer], float]:
    """Sends every request at its time, whatever became of those before; or, with `together`, so many at any time.

    Gives the answers and the seconds of it all.
    """
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    turn = asyncio.Semaphore(together or len(load))
    async with httpx.AsyncClient(base_url=base, timeout=180, limits=limits) as client:
        start = time.monotonic()

        async def send(request: Request) -> Answer:
            if not together:
                await asyncio.sleep(max(0.0, start + request.at_s - time.monotonic()))  # the trace's own clock
            async with turn:
                return await _send(client, request)

        answers = await asyncio.gather(*map(send, load))
        return answers, time.monotonic() - start


async def _send(client: httpx.AsyncClient, request: Request) -> Answer:
    start = time.monotonic()
    first_byte_s, raw = 0.0, bytearray()
    async with client.stream("POST", request.path, json=request.body) as response:
        async for piece in response.aiter_raw():
            first_byte_s = first_byte_s or time.monotonic() - start
            raw += piece
    usage: dict[str, int] = {}
    error: dict[str, Any] = {}
    complete = True
    if response.status_code != 200:
        error = json.loads(bytes(raw))["error"]
    elif request.body.get("stream"):
        events = [line.removeprefix(b"data: ") for line in bytes(raw).split(b"\n\n") if line]
        complete = events[-1] == b"[DONE]"
        usage = json.loads(events[-2])["usage"]
    else:
        usage = json.loads(bytes(raw))["usage"]
    seconds = time.monotonic() - start
    return Answer(response.status_code, response.headers, usage, error, complete, first_byte_s, seconds)
