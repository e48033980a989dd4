"""What prompts share is charged once, and a real engine then holds no more than was promised."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from tests.engine.conftest import Engine, GateFactory, Prompts

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

REQUESTS = 3
COMMON_BLOCKS = 18  # of 32 tokens
USABLE_BLOCKS = 64


@pytest.mark.parametrize("counter", ["folder", "engine"])
def test_requests_that_begin_alike_run_together_where_they_would_not_fit_one_by_one(
    counter: str,
    vllm: "Engine",
    start_gate: "GateFactory",
    prompts: "Prompts",
    eventually: Callable[..., float],
    figures: list[str],
) -> None:
    eventually(lambda: vllm.requests_inside() == 0, "an idle engine", within_s=30)
    preempted = vllm.metric("num_preemptions_total")
    common = prompts.of(600, f"common {counter}")
    flags = ("--tokenizer=engine",) if counter == "engine" else ()
    with start_gate(vllm, *flags, name=f"gate-prefix-{counter}") as gate, ExitStack() as stack:
        client = stack.enter_context(httpx.Client(base_url=gate.url, timeout=60))  # made once: they have to overlap
        charged: list[int] = []
        streams: list[Iterator[str]] = []
        for number in range(REQUESTS):
            body: dict[str, Any] = {
                "model": "tiny",
                "messages": [{"role": "user", "content": f"{common} {number} {number}"}],
                "max_tokens": 350,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            answer = stack.enter_context(client.stream("POST", "/v1/chat/completions", json=body))
            assert answer.status_code == 200
            charged.append(int(answer.headers["x-kvbudget-reserved-blocks"]))
            lines = answer.iter_lines()
            while '"content":"' not in next(lines):  # its prompt is computed
                pass
            streams.append(lines)
        held = round(vllm.metric("kv_cache_usage_perc") * USABLE_BLOCKS)
        reserved = gate.reserved_blocks()
        shared = gate.metric("shared_prefix_blocks")
        assert vllm.metric("num_requests_running") == REQUESTS
        assert charged[0] * REQUESTS > USABLE_BLOCKS > sum(charged)
        assert charged[1:] == [charged[0] - COMMON_BLOCKS] * (REQUESTS - 1)
        assert shared == COMMON_BLOCKS * (REQUESTS - 1)
        assert held <= reserved
        for lines in streams:
            last = [line for line in lines if '"usage":{' in line][-1]
            assert json.loads(last.removeprefix("data: "))["usage"]["completion_tokens"] == 350
        assert vllm.metric("num_preemptions_total") == preempted
        eventually(lambda: gate.reserved_blocks() == 0, "all promises are back")
        assert gate.metric("token_drift_total") == 0
    figures.append(
        f"prefix credit, counted by {counter}: {REQUESTS} requests charged {charged} blocks of {USABLE_BLOCKS}, "
        f"{held:.0f} held of {reserved:.0f} promised, none preempted"
    )
