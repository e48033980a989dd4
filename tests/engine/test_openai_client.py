"""The official `openai` client works through the gate as it is, and waits as long as the gate tells it to."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engine.conftest import Engine, Gate, GateFactory, Prompts

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]


@dataclass(slots=True)
class Witness:
    """Notes what passes over the client's wire and changes nothing."""

    sent_at: list[float] = field(default_factory=list)
    answers: list[tuple[float, int, dict[str, str]]] = field(default_factory=list)

    def on_request(self, _: object) -> None:
        self.sent_at.append(time.monotonic())

    def on_response(self, response: Any) -> None:
        self.answers.append((time.monotonic(), response.status_code, dict(response.headers)))

    def client(self) -> openai.DefaultHttpxClient:
        return openai.DefaultHttpxClient(event_hooks={"request": [self.on_request], "response": [self.on_response]})


def test_plain_answers_and_streams_arrive(gate: "Gate") -> None:
    with openai.OpenAI(base_url=f"{gate.url}/v1", api_key="unused") as client:
        plain = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=12, extra_body={"ignore_eos": True}
        )
        assert plain.usage is not None
        assert plain.usage.completion_tokens == 12
        assert plain.choices[0].finish_reason == "length"
        stream = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "hi"}],
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        chunks = list(stream)
        assert chunks[-1].usage == plain.usage
        assert chunks[0].choices[0].delta.role == "assistant"
        text = client.completions.create(model="tiny", prompt="import ", max_tokens=3, extra_body={"ignore_eos": True})
        assert text.usage is not None
        assert text.usage.completion_tokens == 3
        assert [entry.id for entry in client.models.list()] == ["tiny"]


def test_the_asynchronous_client_runs_plain_answers_and_streams_side_by_side(gate: "Gate") -> None:
    async def run() -> tuple[list[int], list[int]]:
        async with openai.AsyncOpenAI(base_url=f"{gate.url}/v1", api_key="unused") as client:

            async def plain(length: int) -> int:
                answer = await client.chat.completions.create(
                    model="tiny",
                    messages=[{"role": "user", "content": f"plain {length}"}],
                    max_tokens=length,
                    extra_body={"ignore_eos": True},
                )
                return answer.usage.completion_tokens if answer.usage else 0

            async def streamed(length: int) -> int:
                used = 0
                async for chunk in await client.chat.completions.create(
                    model="tiny",
                    messages=[{"role": "user", "content": f"stream {length}"}],
                    max_tokens=length,
                    stream=True,
                    stream_options={"include_usage": True},
                    extra_body={"ignore_eos": True},
                ):
                    used = chunk.usage.completion_tokens if chunk.usage else used
                return used

            lengths = range(5, 11)
            return await asyncio.gather(*map(plain, lengths)), await asyncio.gather(*map(streamed, lengths))

    assert asyncio.run(run()) == (list(range(5, 11)), list(range(5, 11)))
    assert gate.metric("token_drift_total") == 0


def test_a_refusal_for_good_is_not_retried(gate: "Gate", prompts: "Prompts") -> None:
    witness = Witness()
    with (
        openai.OpenAI(base_url=f"{gate.url}/v1", api_key="unused", http_client=witness.client()) as client,
        pytest.raises(openai.BadRequestError) as caught,
    ):
        client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": prompts.of(1100, "over")}], max_tokens=5
        )
    assert caught.value.code == "context_length_exceeded"
    assert len(witness.sent_at) == 1


def test_retries_wait_as_long_as_retry_after_says_and_then_succeed(
    vllm: "Engine",
    start_gate: "GateFactory",
    prompts: "Prompts",
    eventually: "Callable[..., float]",
    figures: list[str],
) -> None:
    witness = Witness()
    with start_gate(vllm, "--queue-seconds=0", name="gate-retries") as gate, ThreadPoolExecutor(2) as others:
        assert _long(gate.url, prompts.of(50, "learn")) == 960  # from this the gate knows how fast the engine is
        patient = prompts.of(300, "patient")
        with openai.OpenAI(
            base_url=f"{gate.url}/v1", api_key="unused", http_client=witness.client(), max_retries=8
        ) as client:  # made before the pool is full: it stays so for seconds only
            hogs = [others.submit(_long, gate.url, prompts.of(50, name)) for name in ("one", "two")]
            eventually(lambda: gate.reserved_blocks() == 64, "two long requests have reserved the whole pool")
            answer = client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": patient}],
                max_tokens=40,
                extra_body={"ignore_eos": True},
            )
        assert [hog.result() for hog in hogs] == [960, 960]
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 40
        statuses = [status for _, status, _ in witness.answers]
        assert statuses[0] == 429, "the pool was not full"
        assert set(statuses[:-1]) == {429}
        assert statuses[-1] == 200
        told_s = []
        for (answered_at, _, headers), retried_at in zip(witness.answers, witness.sent_at[1:], strict=False):
            told_s.append(int(headers["retry-after-ms"]) / 1000)
            assert 0 < told_s[-1] <= 120
            assert int(headers["retry-after"]) >= told_s[-1], "the coarse header promises room before the fine one"
            assert retried_at - answered_at >= told_s[-1] - 0.002
        assert gate.metric("refusals_total") == len(statuses) - 1
        eventually(lambda: gate.reserved_blocks() == 0, "no block stays reserved", within_s=1.0)
    waits = ", ".join(f"{seconds:.1f}" for seconds in told_s)
    figures.append(f"openai client on a full pool: told to wait {waits} s, obeyed, then 200")


def _long(base: str, text: str) -> int:
    """A request that holds half the pool for seconds; gives the tokens that it got."""
    message = [{"role": "user", "content": text}]
    body = {"model": "tiny", "messages": message, "max_tokens": 960, "ignore_eos": True}
    answer = httpx.post(f"{base}/v1/chat/completions", json=body, timeout=120)
    tokens: int = answer.raise_for_status().json()["usage"]["completion_tokens"]
    return tokens
