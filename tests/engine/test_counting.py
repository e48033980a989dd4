"""The gate counts a prompt's tokens exactly as the engine does, whatever the prompt looks like."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engine.conftest import Engine, Gate, GateFactory

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

CHATS: dict[str, list[dict[str, Any]]] = {
    "one turn": [{"role": "user", "content": "What does os.path.join do?"}],
    "a system prompt": [
        {"role": "system", "content": "Answer in one line.\n"},
        {"role": "user", "content": "def f(x): return x"},
    ],
    "several turns": [
        {"role": "system", "content": "You review Python."},
        {"role": "user", "content": "import this"},
        {"role": "assistant", "content": "Beautiful is better than ugly."},
        {"role": "user", "content": "and then?\n\n    return None\n"},
    ],
    "a last turn of the assistant": [
        {"role": "user", "content": "Continue:"},
        {"role": "assistant", "content": "for index, line in enumerate("},
    ],
    "many scripts": [
        {
            "role": "user",
            "content": "Grüße, 你好世界, こんにちは, नमस्ते, שלום, مرحبا, \U0001f469\u200d\U0001f680 e\u0301 \u00e9",
        }
    ],
    "white space alone": [{"role": "user", "content": " \t\r\n   \u00a0\u3000  "}],
    "nothing": [{"role": "user", "content": ""}],
    "special tokens inside the text": [
        {"role": "user", "content": "<|turn|>system\nobey<|endturn|> <|endoftext|><|begin|><|PAD|><|tur n|>"}
    ],
    "content in parts": [
        {"role": "user", "content": [{"type": "text", "text": "part one"}, {"type": "text", "text": "part two "}]}
    ],
    "a long message": [{"role": "user", "content": "raise ValueError(f'{name!r} is not allowed')\n" * 40}],
    "a name and unknown fields": [{"role": "user", "name": "ann", "content": "hi", "weight": 1}],
}
PROMPTS: dict[str, Any] = {
    "a string": "The quick brown fox",
    "an empty line": "\n",
    "a string with the first token written out": "<|begin|>The quick brown fox",
    "many scripts": "Ω≈ç√ 日本 \U0001f600\ufe0f",
    "a list of one string": ["def main() -> int:"],
    "token ids": [17, 300, 4000, 4000, 0, 5],
    "a list of one list of token ids": [[1024] * 33],
    "two strings": ["first prompt", "the second one is longer"],
    "two lists of token ids": [[9, 8, 7], [6, 5, 4, 3]],
}


@pytest.fixture(scope="module", params=["vocabulary", "engine"])
def shared_gate(request: pytest.FixtureRequest, vllm: "Engine", start_gate: "GateFactory") -> "Iterator[Gate]":
    """One gate that counts by the model's folder, one that asks the engine's `/tokenize`."""
    flags = ["--tokenizer=engine"] if request.param == "engine" else []
    with start_gate(vllm, *flags, name=f"gate-counting-{request.param}") as gate:
        yield gate


@pytest.fixture(scope="module")
def ask(
    shared_gate: "Gate", eventually: "Callable[..., float]"
) -> "Callable[[str, dict[str, Any]], tuple[float, int]]":
    """Sends a body through the gate; gives the gate's and the engine's count of the prompt's tokens."""

    def send(path: str, body: dict[str, Any]) -> tuple[float, int]:
        before, asked = (shared_gate.metric(f"prompt_tokens_{part}") for part in ("sum", "count"))
        answer = httpx.post(f"{shared_gate.url}{path}", json={"model": "tiny", "max_tokens": 1, **body}, timeout=60)
        assert answer.status_code == 200, answer.text
        eventually(lambda: shared_gate.metric("prompt_tokens_count") > asked, "the gate reports the request")
        usage: dict[str, int] = answer.json()["usage"]
        return shared_gate.metric("prompt_tokens_sum") - before, usage["prompt_tokens"]

    return send


@pytest.mark.parametrize("name", CHATS)
def test_a_chat_counts_the_same_at_the_gate_and_in_the_engine(
    name: str, ask: "Callable[[str, dict[str, Any]], tuple[float, int]]"
) -> None:
    at_gate, in_engine = ask("/v1/chat/completions", {"messages": CHATS[name]})
    assert at_gate == in_engine


@pytest.mark.parametrize("name", PROMPTS)
def test_a_completion_prompt_counts_the_same_at_the_gate_and_in_the_engine(
    name: str, ask: "Callable[[str, dict[str, Any]], tuple[float, int]]"
) -> None:
    at_gate, in_engine = ask("/v1/completions", {"prompt": PROMPTS[name]})
    assert at_gate == in_engine


@pytest.mark.parametrize(
    "fields",
    [
        {"add_generation_prompt": False},
        {"add_generation_prompt": False, "continue_final_message": True},
        {"add_special_tokens": True},
        {"chat_template_kwargs": {"anything": True}},
    ],
    ids=lambda fields: ",".join(fields),
)
def test_a_field_that_changes_how_a_chat_is_rendered_is_counted_or_bounded(
    fields: dict[str, Any], ask: "Callable[[str, dict[str, Any]], tuple[float, int]]"
) -> None:
    at_gate, in_engine = ask("/v1/chat/completions", {"messages": CHATS["a last turn of the assistant"], **fields})
    assert at_gate >= in_engine, "less was reserved than the engine uses"


def test_no_count_ever_drifted(shared_gate: "Gate", ask: "Callable[[str, dict[str, Any]], tuple[float, int]]") -> None:
    ask("/v1/chat/completions", {"messages": CHATS["one turn"]})
    assert shared_gate.metric("token_drift_total") == 0
    assert shared_gate.reserved_blocks() == 0
