"""A real vocabulary and a template with tools and thoughts: the same ids here and in vLLM; what happens when not."""

import asyncio
import json
import random
import shutil
import subprocess
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import vocabularies
from kvbudget.edge.openai.ask import Ask, Surface, parse_ask
from kvbudget.edge.tokens.count import Count
from kvbudget.edge.tokens.engine import EngineCounter
from kvbudget.edge.tokens.selftest import self_test_strings
from kvbudget.edge.tokens.tokenizer import TokenizerCounter

if TYPE_CHECKING:
    from tests.engine.conftest import Engine, EngineFactory, GateFactory

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".cache" / "tiny-qwen3"
CHATS = 150
TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- set content = message.content if message.content is string else '' %}
{%- if '</think>' in content and message.role == 'assistant' and message.reasoning_content is not string %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.reasoning_content is string and loop.last %}
{{- '<think>\\n' + message.reasoning_content + '\\n</think>' }}
{%- endif %}
{{- content }}
{%- for call in message.tool_calls or [] %}
<tool_call>{{ call.function.name }} {{ call.function.arguments | tojson }}</tool_call>
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""
DRAW = """\
import sys
sys.path.insert(0, sys.argv[1])
import make_tiny_model
make_tiny_model.draw_model(1, 151669).save_pretrained(sys.argv[2])
"""


@pytest.fixture(scope="module")
def qwen(engine_venv: Path) -> Path:
    """A tiny model with Qwen 3's vocabulary."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    command = [str(engine_venv / "bin" / "python"), "-c", DRAW, str(ROOT / "scripts"), str(FOLDER)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    shutil.copy(vocabularies.vocabulary("qwen3") / "tokenizer.json", FOLDER)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (FOLDER / "tokenizer_config.json").write_text(json.dumps(config))
    return FOLDER


@pytest.fixture(scope="module")
def engine(start_engine: "EngineFactory", qwen: Path) -> "Iterator[Engine]":
    with start_engine("vllm-qwen3", folder=qwen) as started:
        yield started


def _chats() -> list[dict[str, Any]]:
    chance = random.Random(5)
    strings = [text for text in self_test_strings(["<|im_end|>", "<think>", "</think>"]) if len(text) < 100]

    def text() -> str:
        return " ".join(chance.choice(strings) for _ in range(chance.randint(0, 6)))

    bodies = []
    for _ in range(CHATS):
        messages: list[dict[str, Any]] = [{"role": chance.choice(["system", "developer", "user"]), "content": text()}]
        for _ in range(chance.randint(0, 2)):
            messages.append(
                {"role": "user", "content": chance.choice([text(), [{"type": "text", "text": text()}] * 2])}
            )
            answer: dict[str, Any] = {"role": "assistant", "content": chance.choice([None, text()])}
            if chance.random() < 0.5:
                answer[chance.choice(["reasoning", "reasoning_content"])] = text()
            if chance.random() < 0.5:
                arguments = json.dumps({"é": text()}, ensure_ascii=False)
                answer["tool_calls"] = [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
                ]
            messages.append(answer)
        body: dict[str, Any] = {"model": "tiny", "messages": messages}
        if chance.random() < 0.4:
            parameters = {"type": "object", "properties": {text()[:9]: {"type": "string", "description": text()}}}
            body["tools"] = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
        if chance.random() < 0.3:
            body["chat_template_kwargs"] = {"enable_thinking": chance.random() < 0.5}
        if messages[-1]["role"] == "assistant" and messages[-1]["content"] and chance.random() < 0.5:
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        bodies.append(body)
    return bodies


def test_random_chats_have_the_same_ids_here_and_in_the_engine(engine: "Engine", qwen: Path) -> None:
    counter = TokenizerCounter.load(qwen, deadline_s=60)

    async def post(path: str, body: bytes) -> tuple[int, bytes]:
        answer = engine.http.post(f"{engine.url}{path}", content=body, headers={"content-type": "application/json"})
        return answer.status_code, answer.content

    async def told(ask: Ask) -> Count:
        counting = EngineCounter(post).count(ask)
        return counting if isinstance(counting, Count) else await counting

    for body in _chats():
        ask = parse_ask(Surface.CHAT, json.dumps(body).encode())
        ours, theirs = counter.count(ask), asyncio.run(told(ask))
        assert isinstance(ours, Count)
        assert isinstance(ours.token_ids, bytes)
        assert array("I", ours.token_ids).tolist() == theirs.token_ids, body


def test_a_wrong_template_is_found_and_the_engine_counts_from_then_on(
    engine: "Engine", qwen: Path, start_gate: "GateFactory", eventually: "Callable[..., float]", tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.jinja"
    wrong.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    flags = (f"--tokenizer={qwen}", f"--chat-template={wrong}")
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
    with start_gate(engine, *flags, name="gate-wrong-template") as gate:

        def counting() -> dict[str, Any]:
            state: dict[str, Any] = httpx.get(f"{gate.admin}/v1/state").json()["counting"]
            return state

        for sent in range(1, 4):
            httpx.post(f"{gate.url}/v1/chat/completions", json=body, timeout=60).raise_for_status()
            eventually(lambda sent=sent: counting()["compared"] == sent, "the count is compared")
        assert counting()["engine_took_over"]
        drift = gate.metric("token_drift_total")
        assert drift > 0
        answer = httpx.post(f"{gate.url}/v1/chat/completions", json=body, timeout=60).raise_for_status()
        eventually(lambda: counting()["compared"] == 4, "the count is compared")
        assert gate.metric("token_drift_total") == drift
        assert answer.headers["x-kvbudget-prompt-tokens"] == str(answer.json()["usage"]["prompt_tokens"])


def test_prompts_go_as_ids_once_the_counts_agree_and_the_answers_stay_the_same(
    engine: "Engine", qwen: Path, start_gate: "GateFactory"
) -> None:
    body = {"model": "tiny", "max_tokens": 4, "temperature": 0}
    with start_gate(engine, f"--tokenizer={qwen}", "--forward-token-ids", name="gate-ids") as gate:
        for number in range(40):
            asked = {**body, "prompt": f"{number} blocks of 你好 <|im_end|>"}
            direct, through = (
                httpx.post(f"{url}/v1/completions", json=asked, timeout=60).raise_for_status().json()
                for url in (engine.url, gate.url)
            )
            assert through["choices"] == direct["choices"]
            assert through["usage"] == direct["usage"]
        compared = httpx.get(f"{gate.admin}/v1/state").json()["counting"]["compared"]
        assert compared < 40, "none went as ids"
        assert gate.metric("token_drift_total") == 0
