"""Two vLLM of different max length behind one gate: lengths decide who takes what, and one may die in mid-load."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engine.conftest import EngineFactory, GateFactory

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

SHORT_LEN = 512
SHORT_FLAGS = (f"--max-model-len={SHORT_LEN}", "--num-gpu-blocks-override=17")
CLIENTS = 12
END_S = 60.0


def ask(max_tokens: int, **more: object) -> dict[str, Any]:
    message = [{"role": "user", "content": "hi"}]
    return {"model": "tiny", "messages": message, "max_tokens": max_tokens, "ignore_eos": True, **more}


def test_lengths_decide_who_takes_what_and_a_killed_engine_leaves_nobody_hanging(
    start_engine: "EngineFactory", start_gate: "GateFactory", eventually: "Callable[..., float]", figures: list[str]
) -> None:
    with ThreadPoolExecutor(2) as starting, ExitStack() as stack:
        made = [starting.submit(stack.enter_context, start_engine("vllm-long")),
                starting.submit(stack.enter_context, start_engine("vllm-short", *SHORT_FLAGS))]  # fmt: skip
        long, short = [engine.result() for engine in made]
        gate = stack.enter_context(start_gate(long, f"--backend={short.url}", name="gate-two"))
        client = stack.enter_context(httpx.Client(base_url=gate.url, timeout=END_S))

        def send(body: dict[str, Any]) -> httpx.Response:
            return client.post("/v1/chat/completions", json=body)

        def served(engine: Any) -> float:
            finished: float = engine.metric("request_success_total")
            return finished

        told = {one["url"]: one for one in gate.state()["instances"]}
        assert (told[long.url]["tier"], told[short.url]["tier"]) == (1, 0)
        assert (told[short.url]["max_context"], told[short.url]["usable_blocks"]) == (SHORT_LEN, 16)

        before = served(long), served(short)
        assert {send(ask(16)).status_code for _ in range(4)} == {200}
        assert (served(long), served(short)) == (before[0], before[1] + 4), "short work stays with the short one"
        assert send(ask(900)).status_code == 200
        assert (served(long), served(short)) == (before[0] + 1, before[1] + 4), "long work never goes there"
        refused = send(ask(8, messages=[{"role": "user", "content": "word " * 3000}]))
        assert refused.status_code == 400
        assert "maximum context length is 1024 tokens" in refused.json()["error"]["message"]

        # More short work than the short one has room for: the long one lends.
        with ThreadPoolExecutor(CLIENTS) as clients:
            began = time.monotonic()
            answers = [clients.submit(send, ask(240)) for _ in range(CLIENTS)]
            eventually(lambda: long.metric("num_requests_running") > 0, "the long one lends")
            # Last, so that it dies at work: what it had done already would need no second try.
            eventually(lambda: short.metric("num_requests_running") > 0, "the short one works")
            killed = time.monotonic()
            short.kill()
            got = [answer.result() for answer in answers]
            ended_s = time.monotonic() - killed
        statuses = sorted(answer.status_code for answer in got)
        assert ended_s < END_S, "a client hung"
        assert set(statuses) == {200}, "whoever had received nothing was tried again at the other one"
        released_s = eventually(lambda: gate.reserved_blocks() == 0, "all reservations end", within_s=2.0)
        name = short.url.split("//")[1]
        eventually(lambda: gate.metric("backend_up", instance=name) == 0, "the next look finds it dead", within_s=5.0)
        assert send(ask(16)).status_code == 200, "the traffic has moved"
        retries = gate.metric("retries_total")
        assert retries > 0
    figures.append(
        f"two engines ({SHORT_LEN} and 1,024 tokens), {CLIENTS} clients, the short one killed after "
        f"{killed - began:.1f} s: all answered ({statuses.count(200)} x 200, {retries:.0f} tried again) "
        f"{ended_s:.1f} s later, gate free {released_s * 1000:.0f} ms after that"
    )
