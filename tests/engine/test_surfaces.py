"""Bodies of /v1/messages and /v1/responses become the chats that vLLM's own code makes of them, and count as there."""

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anthropic
import httpx
import openai
import pytest

from kvbudget.edge.openai.prompts import ChatPrompt
from kvbudget.edge.surfaces import messages, responses
from kvbudget.edge.tokens.conversation import conversation_of, tools_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engine.conftest import Gate

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

Body = dict[str, Any]
ORACLE = Path(__file__).parent / "conversion_oracle.py"
TOOL = {"name": "f", "description": "d", "input_schema": {"properties": {"a": {"type": "string"}}}}
FLAT_TOOL = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": False}


def user(content: object) -> Body:
    return {"role": "user", "content": content}


def said(content: object) -> Body:
    return {"role": "assistant", "content": content}


def text(words: str) -> Body:
    return {"type": "text", "text": words}


def used(name: str, call: str, arguments: object) -> Body:
    return {"type": "tool_use", "id": call, "name": name, "input": arguments}


def result(call: str, content: object) -> Body:
    return {"type": "tool_result", "tool_use_id": call, "content": content}


def call(name: str, call_id: str, arguments: str) -> Body:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


MESSAGES: list[Body] = [
    {"messages": [user("hi")]},
    {"messages": [user([text("a"), text("b")])], "system": "sys"},
    {"messages": [user("x")], "system": [text("x-anthropic-billing-header: 1"), text("one"), text("two")]},
    {
        "messages": [
            user("q"),
            said([{"type": "thinking", "thinking": "T", "signature": "s"}, text("look"), used("f", "1", {"a": "é"})]),
            user([result("1", [text("r1"), text("r2")]), text("go")]),
        ],
        "tools": [TOOL],
    },
    {
        "messages": [
            user("q"),
            said([used("f", "1", {}), used("f", "2", {"z": [1, 2.5, None]})]),
            user([result("1", "r1"), {"type": "tool_result", "tool_use_id": "2"}]),
        ],
        "tools": [TOOL, {**TOOL, "name": "g", "strict": True}],
    },
    {"messages": [user("q"), said([{"type": "redacted_thinking", "data": "zz"}, text("x")]), user([text("")])]},
    {"messages": [user("q")], "thinking": {"type": "disabled"}},
    {"messages": [user("q")], "output_config": {"effort": "high"}},
    {"messages": [user("q"), said("prefill")]},
    {"messages": [user([text("one"), text(""), text("two")])]},
    {"messages": [user("q")], "tools": []},
]
RESPONSES: list[Body] = [
    {"input": "hi"},
    {"input": "hi", "instructions": "sys"},
    {
        "input": [
            user("q"),
            call("f", "c", '{"a": 1}'),
            {"type": "function_call_output", "call_id": "c", "output": "r"},
        ],
        "tools": [FLAT_TOOL],
    },
    {
        "input": [
            user("q"),
            {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "think"}]},
            {
                "type": "message", "role": "assistant", "id": "m", "status": "completed",
                "content": [{"type": "output_text", "text": "said", "annotations": []}],
            },
            call("f", "c", "{}"),
            call("f", "d", "{}"),
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "r"}]},
            user("next"),
        ]
    },
    {
        "input": [
            user([{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]),
            said("said"),
            said("again"),
            {"role": "developer", "content": "dev"},
        ],
        "reasoning": {"effort": "low"},
    },
]  # fmt: skip
CASES = [("messages", {"model": "m", "max_tokens": 5, **body}) for body in MESSAGES]
CASES += [("responses", {"model": "m", **body}) for body in RESPONSES]


def test_bodies_become_the_chats_that_vllm_makes_of_them(engine_venv: Path) -> None:
    lines = "\n".join(map(json.dumps, CASES))
    python = engine_venv / "bin" / "python"
    done = subprocess.run([python, ORACLE], input=lines, capture_output=True, text=True, timeout=300, check=False)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(CASES), done.stderr[-2000:]
    for (surface, body), theirs in zip(CASES, answers, strict=True):
        ours = messages.prompt_of(body) if surface == "messages" else responses.prompt_of(body)
        assert "error" not in theirs, (body, theirs)
        assert isinstance(ours, ChatPrompt), body
        for parts in (False, True):
            assert conversation_of(ours.messages, parts=parts, developer_role=True) == conversation_of(
                tuple(theirs["messages"]), parts=parts, developer_role=True
            )
        assert tools_of(ours.tools) == tools_of(None if theirs["tools"] is None else tuple(theirs["tools"]))
        assert ours.template_kwargs.get("reasoning_effort") == theirs["effort"]


@pytest.mark.parametrize("body", [body for body in MESSAGES if "tools" not in body], ids=str)
def test_messages_count_the_same_at_the_gate_and_in_the_engine(gate: "Gate", body: Body) -> None:
    with anthropic.Anthropic(base_url=gate.url, api_key="unused") as client:
        raw = client.messages.with_raw_response.create(model="tiny", max_tokens=3, **body)
        counted = client.messages.count_tokens(model="tiny", **body)
        theirs = raw.parse().usage.input_tokens
        assert raw.headers["x-kvbudget-prompt-tokens"] == str(counted.input_tokens) == str(theirs)


@pytest.mark.parametrize("body", RESPONSES[:2], ids=str)
def test_responses_count_the_same_at_the_gate_and_in_the_engine(gate: "Gate", body: Body) -> None:
    with openai.OpenAI(base_url=f"{gate.url}/v1", api_key="unused") as client:
        raw = client.responses.with_raw_response.create(model="tiny", max_output_tokens=3, **body)
        usage = raw.parse().usage
        assert usage is not None
        assert raw.headers["x-kvbudget-prompt-tokens"] == str(usage.input_tokens)


def test_streams_end_with_a_usage_that_the_gate_reads(gate: "Gate", eventually: "Callable[..., float]") -> None:
    """And as many events come before the first token as the gate takes away."""
    for path, first, lead, body in (
        ("/v1/messages", "content_block_delta", messages.LEAD_EVENTS, {"messages": [user("hi")], "max_tokens": 9}),
        ("/v1/responses", "response.output_text.delta", responses.LEAD_EVENTS, {"input": "hi", "max_output_tokens": 9}),
    ):
        before = gate.metric("output_tokens_count")
        answer = httpx.post(f"{gate.url}{path}", json={"model": "tiny", "stream": True, **body}, timeout=60)
        kinds = [line.removeprefix("event: ") for line in answer.text.splitlines() if line.startswith("event: ")]
        assert kinds.index(first) == lead, kinds
        eventually(lambda seen=before: gate.metric("output_tokens_count") > seen, "the gate has read the usage")
    assert gate.metric("token_drift_total") == 0
    assert gate.reserved_blocks() == 0


def test_an_error_in_the_anthropic_form_reaches_the_anthropic_client(gate: "Gate") -> None:
    with anthropic.Anthropic(base_url=gate.url, api_key="unused", max_retries=0) as client:
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            client.messages.create(model="tiny", max_tokens=3, messages=[{"role": "user", "content": "x y " * 3000}])
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(model="none", max_tokens=3, messages=[{"role": "user", "content": "x"}])
