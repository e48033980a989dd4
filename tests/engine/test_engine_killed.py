"""An engine that dies in the middle of an answer leaves no client hanging and no block reserved."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import httpx
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engine.conftest import EngineFactory, GateFactory

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

END_S = 5.0


def test_an_engine_killed_in_mid_stream_ends_the_streams_and_the_reservations(
    start_engine: "EngineFactory", start_gate: "GateFactory", eventually: "Callable[..., float]", figures: list[str]
) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 900, "ignore_eos": True}
    with (
        start_engine("vllm-killed") as engine,
        start_gate(engine, name="gate-killed") as gate,
        ThreadPoolExecutor(1) as others,
        httpx.Client(base_url=gate.url, timeout=httpx.Timeout(10, read=30)) as client,
    ):
        plain = others.submit(httpx.post, f"{gate.url}/v1/chat/completions", json=body, timeout=30)
        eventually(lambda: engine.metric("num_requests_running") == 1, "the engine works on the plain request")
        received, ending = b"", "end of body"
        killed_at = 0.0
        with client.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as stream:
            assert stream.status_code == 200
            try:
                for piece in stream.iter_raw():
                    received += piece
                    if not killed_at and received.count(b"data: ") >= 5:
                        killed_at = time.monotonic()
                        engine.kill()
            except httpx.RemoteProtocolError:
                ending = "cut body"
        ended_s = time.monotonic() - killed_at
        answer = plain.result()
        assert killed_at, f"the stream ended before the engine was killed: {received[-300:]!r}"
        assert b"[DONE]" not in received
        # A whole body with nothing said would look like a short answer: either the cut or an error event must tell.
        assert ending == "cut body" or b'"error"' in received
        assert ended_s < END_S, "the client hung"
        assert answer.status_code in (502, 503), answer.text
        assert {"message", "type", "param", "code"} <= answer.json()["error"].keys()
        released_s = eventually(lambda: gate.reserved_blocks() == 0, "the reservation ends", within_s=1.0)

        refused = httpx.post(f"{gate.url}/v1/chat/completions", json=body, timeout=30)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert {"message", "type", "param", "code"} <= refused.json()["error"].keys()
        assert gate.reserved_blocks() == 0
        assert httpx.get(f"{gate.url}/health", timeout=10).status_code == 200, "/health is the gate's own"
    figures.append(
        f"engine killed in mid-stream: client ended after {ended_s * 1000:.0f} ms ({ending}), "
        f"plain request {answer.status_code}, gate free {released_s * 1000:.0f} ms later, "
        f"next request 503, Retry-After {refused.headers['retry-after']}"
    )
