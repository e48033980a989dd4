"""A client that goes away gives its blocks back within a second, at the gate and in the engine, wherever it was."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from tests.engine.conftest import Engine, Gate, GateFactory, Prompts

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

RELEASE_S = 1.0


class Client:
    """One request on a bare socket, so that going away is exactly one close."""

    def __init__(self, base: str, text: str, max_tokens: int, *, stream: bool = True) -> None:
        message = [{"role": "user", "content": text}]
        fields: dict[str, Any] = {"model": "tiny", "messages": message, "max_tokens": max_tokens, "ignore_eos": True}
        body = json.dumps(fields | {"stream": stream}).encode()
        address = urlsplit(base)
        self.received = b""
        self.socket = socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=60)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
        self.socket.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def read_until(self, mark: bytes, times: int) -> None:
        """Reads the answer until `mark` was seen so often."""
        while self.received.count(mark) < times:
            piece = self.socket.recv(65536)
            assert piece, f"closed after {self.received[-300:]!r}"
            self.received += piece

    def close(self) -> None:
        """Goes away."""
        self.socket.close()


@pytest.fixture
def clients() -> Iterator[Callable[..., Client]]:
    """Makes clients; those that are still there go away with the test."""
    with ExitStack() as stack:

        def make(*args: Any, **options: Any) -> Client:
            client = Client(*args, **options)
            stack.callback(client.close)
            return client

        yield make


@pytest.fixture
def idle(vllm: "Engine", eventually: Callable[..., float]) -> None:
    """The engine has nothing to do before the test begins."""
    eventually(lambda: vllm.requests_inside() == 0, "an idle engine", within_s=30)


@pytest.mark.usefixtures("idle")
def test_a_client_that_leaves_the_queue_is_forgotten_and_the_engine_never_hears_of_it(
    gate: "Gate",
    vllm: "Engine",
    prompts: "Prompts",
    clients: Callable[..., Client],
    eventually: Callable[..., float],
    figures: list[str],
) -> None:
    seen_by_engine = vllm.metric("prompt_tokens_total")
    for name in ("first", "second"):  # 32 blocks each: together the whole pool
        clients(gate.url, prompts.of(50, name), 960).read_until(b"data: ", 2)
    # At its end the two others would hold 21 blocks each, and it 31: more than the 64, so no policy may let it in.
    waiting = clients(gate.url, prompts.of(380, "waiting"), 600)
    eventually(lambda: gate.metric("queue_requests") == 1, "the third request waits in the queue")
    reserved = gate.reserved_blocks()
    waiting.close()
    took_s = eventually(lambda: gate.metric("queue_requests") == 0, "the place in the queue is free", RELEASE_S)
    assert gate.reserved_blocks() == reserved > 32
    assert vllm.metric("prompt_tokens_total") - seen_by_engine < 200
    figures.append(f"client leaves the queue: forgotten after {took_s * 1000:.0f} ms")


@pytest.mark.usefixtures("idle")
def test_a_client_that_leaves_before_the_first_token_is_released(
    vllm: "Engine",
    start_gate: "GateFactory",
    prompts: "Prompts",
    clients: Callable[..., Client],
    eventually: Callable[..., float],
    figures: list[str],
) -> None:
    # The engine is filled behind the gate's back, so that a request which the gate lets through waits inside it: three
    # prompts of 340 tokens hold 33 blocks and grow, the fourth needs 32 of the 64.
    with start_gate(vllm, "--pool-blocks=256", name="gate-first-token") as gate:
        for name in ("one", "two", "three"):
            clients(vllm.url, prompts.of(340, name), 670).read_until(b"data: ", 2)
        waiting = clients(gate.url, prompts.of(1000, "waiting"), 8)
        eventually(lambda: vllm.requests_inside() == 4, "the fourth request waits inside the engine", within_s=2)
        assert gate.reserved_blocks() == 32
        waiting.close()
        figures.append(_released("before the first token", gate, vllm, still_inside=3))


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
def test_a_client_that_leaves_in_the_middle_is_released(
    stream: bool,
    gate: "Gate",
    vllm: "Engine",
    prompts: "Prompts",
    clients: Callable[..., Client],
    eventually: Callable[..., float],
    figures: list[str],
) -> None:
    generated = vllm.metric("generation_tokens_total")
    client = clients(gate.url, prompts.of(30, f"middle{stream}"), 980, stream=stream)
    if stream:
        client.read_until(b"data: ", 5)
    else:
        eventually(lambda: vllm.metric("num_requests_running") == 1, "the engine generates")
    assert gate.reserved_blocks() == 32
    client.close()
    figures.append(_released("mid-stream" if stream else "a plain answer", gate, vllm, still_inside=0))
    assert vllm.metric("generation_tokens_total") - generated < 980, "it ran to its end: nothing was shown"


def _released(where: str, gate: "Gate", vllm: "Engine", still_inside: int) -> str:
    """Watches both sides until both have released the request; tells when each did."""
    start = time.monotonic()
    released_s: dict[str, float] = {}
    while len(released_s) < 2:
        if gate.reserved_blocks() == 0:
            released_s.setdefault("gate", time.monotonic() - start)
        if vllm.requests_inside() <= still_inside:
            released_s.setdefault("engine", time.monotonic() - start)
        assert time.monotonic() - start < RELEASE_S, f"after {RELEASE_S} s only these had released it: {released_s}"
    engine_ms, gate_ms = (released_s[side] * 1000 for side in ("engine", "gate"))
    return f"client leaves {where}: engine free after {engine_ms:.0f} ms, gate after {gate_ms:.0f} ms"
