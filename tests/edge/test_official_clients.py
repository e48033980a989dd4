"""The official clients, unchanged, against the gate before the embedded engine."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx
import openai
import pytest
import uvloop

from kvbudget.edge.engine.server import start_engine
from kvbudget.edge.engine.settings import EngineSettings
from kvbudget.edge.service import GateService, ServiceSettings, start_service
from kvbudget.gate.gate import GateConfig
from kvbudget.gate.policies import Policy

MODEL = "embedded"
ENGINE_KEYS = set(EngineSettings.__dataclass_fields__)


@dataclass
class Stage:
    """A gate before a running embedded engine."""

    service: GateService

    def openai(self, **more: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.service.url}/v1", api_key="key", **more)

    def anthropic(self, **more: Any) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(base_url=self.service.url, api_key="key", **more)

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.service.url, timeout=20)


Scene = Callable[[Stage], Awaitable[None]]


@pytest.fixture
def play() -> Callable[..., None]:
    """`play(scene, **settings of engine and service)`: nothing may drift, leak or stay promised."""

    def run(scene: Scene, *, drift: bool = False, **settings: Any) -> None:
        of_engine = {name: settings.pop(name) for name in list(settings) if name in ENGINE_KEYS}
        policy = settings.pop("policy", Policy.WORST_CASE)
        queue_requests = settings.pop("queue_requests", 1024)

        async def all_of_it() -> None:
            engine = await start_engine(EngineSettings(**of_engine))
            gate = GateConfig(policy=policy, abort_tail_ns=0, queue_requests=queue_requests)
            service = await start_service(
                ServiceSettings(backend_url=engine.url, port=0, admin_port=0, gate=gate, **settings)
            )
            try:
                async with asyncio.timeout(60):
                    await scene(Stage(service))
                if not drift:
                    assert service.gateway.metrics.token_drift == 0
                assert service.gateway.metrics.ledger_errors == 0
            finally:
                await service.close()
                await engine.close()
                assert service.gate.promised_blocks() == 0

        uvloop.run(all_of_it())

    return run


# openai


def test_openai_chats_and_completes_plain_and_streamed(play: Callable[..., None]) -> None:
    async def scene(stage: Stage) -> None:
        async with stage.openai() as client:
            messages: Any = [{"role": "user", "content": "Say something."}]
            plain = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=12)
            assert plain.usage is not None
            stream = await client.chat.completions.create(
                model=MODEL, messages=messages, max_tokens=12, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
            assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == (
                plain.choices[0].message.content
            )
            assert chunks[-1].usage is not None
            assert chunks[-1].usage.completion_tokens == plain.usage.completion_tokens
            text = await client.completions.create(model=MODEL, prompt="once upon", max_tokens=5)
            assert text.usage is not None
            assert text.usage.completion_tokens <= 5

    play(scene)


def test_openai_sync_client_works_in_a_thread(play: Callable[..., None]) -> None:
    async def scene(stage: Stage) -> None:
        def ask() -> str:
            with openai.OpenAI(base_url=f"{stage.service.url}/v1", api_key="key") as client:
                return client.responses.create(model=MODEL, input="hi", max_output_tokens=4).output_text

        assert await asyncio.to_thread(ask)

    play(scene)


def test_openai_responses_plain_and_streamed_are_counted_exactly(play: Callable[..., None]) -> None:
    async def scene(stage: Stage) -> None:
        async with stage.openai() as client:
            history: Any = [
                {"role": "user", "content": [{"type": "input_text", "text": "What is the weather in Kyiv?"}]},
                {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Kyiv"}'},
                {"type": "function_call_output", "call_id": "c1", "output": "Sunny"},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is sunny."}]},
                {"role": "user", "content": "And tomorrow?"},
            ]
            tools: Any = [{"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}]
            asked: Any = {"model": MODEL, "input": history, "instructions": "Be brief.", "tools": tools}
            raw = await client.responses.with_raw_response.create(**asked, max_output_tokens=8)
            plain = raw.parse()
            assert plain.usage is not None
            assert raw.headers["x-kvbudget-prompt-tokens"] == str(plain.usage.input_tokens)
            async with client.responses.stream(**asked, max_output_tokens=8) as stream:
                kinds = [event.type async for event in stream]
                final = await stream.get_final_response()
            assert kinds[0] == "response.created"
            assert final.output_text == plain.output_text
            assert final.usage == plain.usage

    play(scene)


def test_a_missing_cap_is_filled_in_under_the_name_of_each_api(play: Callable[..., None]) -> None:
    async def scene(stage: Stage) -> None:
        async with stage.openai() as client, stage.http() as http:
            response = await client.responses.create(model=MODEL, input="hi", extra_body={"ignore_eos": True})
            assert response.usage is not None
            assert response.usage.output_tokens == response.max_output_tokens == 7
            body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "ignore_eos": True}
            assert (await http.post("/v1/messages", json=body)).json()["usage"]["output_tokens"] == 7
            generated = await http.post("/generate", json={"inputs": "hi", "parameters": {"ignore_eos_token": True}})
            assert generated.headers["x-generated-tokens"] == "7"

    play(scene, default_max_tokens=7)


def test_openai_embeds_and_is_charged_its_prompts_alone(play: Callable[..., None]) -> None:
    async def scene(stage: Stage) -> None:
        async with stage.openai() as client:
            raw = await client.embeddings.with_raw_response.create(model=MODEL, input=["a" * 64, "b" * 64])
            assert raw.headers["x-kvbudget-prompt-tokens"] == "32"
            assert raw.headers["x-kvbudget-reserved-blocks"] == "2"  # 16 tokens each: one block each, none for output
            vectors = raw.parse()
            assert [len(entry.embedding) for entry in vectors.data] == [8, 8]
            assert vectors.usage.prompt_tokens == 32

    play(scene, block_size=16)


def test_many_inputs_are_charged_what_a_step_holds_and_served_beyond_max_num_seqs(play: Callable[..., None]) -> None:
    async def scene(stage: Stage) -> None:
        async with stage.openai() as client:
            raw = await client.embeddings.with_raw_response.create(model=MODEL, input=["a" * 400] * 600)
            assert len(raw.parse().data) == 600
            assert int(raw.headers["x-kvbudget-reserved-blocks"]) < 300

    play(scene, num_blocks=513)


def test_openai_retries_a_refusal_when_it_is_told_to(play: Callable[..., None]) -> None:
    async def scene(stage: Stage) -> None:
        refused = 0

        async def note(answer: httpx.Response) -> None:
            nonlocal refused
            refused += answer.status_code == 429
            if answer.status_code == 429:
                assert int(answer.headers["retry-after"]) >= 1
                held.cancel()

        http = httpx.AsyncClient(event_hooks={"response": [note]})
        async with stage.openai(http_client=http) as client, stage.openai() as other:
            endless: Any = {"model": MODEL, "prompt": "x", "max_tokens": 300, "extra_body": {"ignore_eos": True}}
            held = asyncio.ensure_future(other.completions.create(**endless))
            async with asyncio.timeout(10):
                while not stage.service.gate.promised_blocks():
                    await asyncio.sleep(0.01)
            answer = await client.responses.create(model=MODEL, input="hi", max_output_tokens=200)
            assert answer.usage is not None
            assert refused == 1

    play(scene, num_blocks=32, max_model_len=400, queue_requests=0, step_cost_s=0.05)


# anthropic


def test_anthropic_talks_plain_and_streamed_and_is_counted_exactly(play: Callable[..., None]) -> None:
    async def scene(stage: Stage) -> None:
        tools: Any = [{"name": "weather", "description": "tells it", "input_schema": {"type": "object"}}]
        messages: Any = [
            {"role": "user", "content": [{"type": "text", "text": "What is the weather in Kyiv?"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Call the tool.", "signature": "s"},
                    {"type": "text", "text": "Let me look."},
                    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Kyiv"}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "Sunny"}]},
        ]
        asked: Any = {"model": MODEL, "system": "Be brief.", "messages": messages, "tools": tools}
        async with stage.anthropic() as client:
            raw = await client.messages.with_raw_response.create(**asked, max_tokens=9)
            plain = await raw.parse()
            assert raw.headers["x-kvbudget-prompt-tokens"] == str(plain.usage.input_tokens)
            assert int(raw.headers["anthropic-ratelimit-tokens-remaining"]) > 0
            assert raw.headers["anthropic-ratelimit-tokens-reset"].endswith("Z")
            assert raw.headers["request-id"] == raw.headers["x-request-id"]
            counted = await client.messages.count_tokens(**asked)
            assert counted.input_tokens == plain.usage.input_tokens
            async with client.messages.stream(**asked, max_tokens=9) as stream:
                final = await stream.get_final_message()
            said, streamed = ([block.to_dict()["text"] for block in answer.content] for answer in (plain, final))
            assert said == streamed
            assert final.usage.output_tokens == plain.usage.output_tokens

    play(scene)


def test_anthropic_gets_its_own_errors(play: Callable[..., None]) -> None:
    async def scene(stage: Stage) -> None:
        async with stage.anthropic(max_retries=0) as client:
            too_long: Any = [{"role": "user", "content": "x" * 4000}]
            with pytest.raises(anthropic.BadRequestError, match="prompt is too long: 1008 tokens > 255 maximum") as bad:
                await client.messages.create(model=MODEL, messages=too_long, max_tokens=5)
            body: Any = bad.value.body
            assert set(body) == {"type", "error", "request_id"}
            assert body["error"]["type"] == "invalid_request_error"
            assert body["request_id"] == bad.value.request_id
            odd: Any = [{"role": "user", "content": [{"type": "server_tool_use"}]}]
            with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].content\[0\]"):
                await client.messages.create(model=MODEL, messages=odd, max_tokens=5)
            stage.service.gateway.start_draining()
            with pytest.raises(anthropic.APIStatusError) as gone:
                await client.messages.create(model=MODEL, messages=[{"role": "user", "content": "hi"}], max_tokens=5)
            overloaded: Any = gone.value.body
            assert (gone.value.status_code, overloaded["error"]["type"]) == (503, "overloaded_error")

    play(scene, max_model_len=256)


# others that have no client here: TGI, rerankers


def test_tgi_generates_plain_and_streamed_and_is_counted_exactly(play: Callable[..., None]) -> None:
    async def scene(stage: Stage) -> None:
        asked = {"inputs": "once upon a time", "parameters": {"max_new_tokens": 6, "details": True}}
        async with stage.http() as http:
            plain = await http.post("/generate", json=asked)
            assert plain.headers["x-kvbudget-prompt-tokens"] == plain.headers["x-prompt-tokens"] == "4"
            streamed = await http.post("/generate_stream", json=asked)
            last = streamed.text.strip().rsplit("data:", 1)[1]
            assert plain.json()["generated_text"] in last
            several = await http.post("/generate", json={"inputs": "a", "parameters": {"best_of": 3}})
            assert several.status_code == 200
            over = await http.post("/generate", json={"inputs": "x" * 9000, "parameters": {"max_new_tokens": 6}})
            assert set(over.json()) == {"error", "error_type"}
            assert over.json()["error_type"] == "validation"

    play(scene, max_model_len=512)


def test_scores_and_reranking_are_answered_and_charged(play: Callable[..., None]) -> None:
    async def scene(stage: Stage) -> None:
        async with stage.http() as http:
            pairs = {"model": MODEL, "query": "who", "documents": ["he", "she", "it"], "top_n": 2}
            ranked = await http.post("/v1/rerank", json=pairs)
            assert len(ranked.json()["results"]) == 2
            assert int(ranked.headers["x-kvbudget-reserved-blocks"]) > 0
            scored = await http.post("/score", json={"model": MODEL, "text_1": "who", "text_2": ["he", "she"]})
            assert [entry["index"] for entry in scored.json()["data"]] == [0, 1]
            for path in ("/pooling", "/classify"):
                assert (await http.post(path, json={"model": MODEL, "input": "hi"})).status_code == 200

    play(scene)


def test_learned_admission_sees_the_lengths_of_every_api(play: Callable[..., None]) -> None:
    async def scene(stage: Stage) -> None:
        messages: Any = [{"role": "user", "content": "hi"}]
        async with stage.openai() as client, stage.anthropic() as claude, stage.http() as http:
            async with client.responses.stream(model=MODEL, input="hi", max_output_tokens=30) as stream:
                await stream.get_final_response()
            async with claude.messages.stream(model=MODEL, messages=messages, max_tokens=30) as talk:
                await talk.get_final_message()
            await http.post("/generate_stream", json={"inputs": "hi", "parameters": {"max_new_tokens": 30}})
            await http.post("/v1/embeddings", json={"model": MODEL, "input": "hi"})
        assert stage.service.gateway.metrics.outcomes["finished"] == 4
        # Of embeddings there is no length to learn. A little less than 3: old answers fade.
        assert 2.9 < stage.service.gate.learned.lengths.answers <= 3

    play(scene, policy=Policy.LEARNED)
