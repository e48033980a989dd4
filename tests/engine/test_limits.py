"""The gate fills in, cuts and multiplies what a request asks for, and says what can never be."""

from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from tests.engine.conftest import Engine, Gate, Prompts

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

BLOCK_SIZE = 32
WINDOW = 1024


def test_a_missing_max_tokens_is_filled_with_what_was_reserved(gate: "Gate", prompts: "Prompts") -> None:
    answer = _chat(gate, prompts.of(800, "filled"))
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    reserved_tokens = int(answer.headers["x-kvbudget-reserved-blocks"]) * BLOCK_SIZE
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    assert usage["total_tokens"] <= min(reserved_tokens, WINDOW)


def test_a_max_tokens_beyond_the_window_is_cut_to_what_is_left(gate: "Gate", prompts: "Prompts") -> None:
    answer = _chat(gate, prompts.of(960, "cut"), max_tokens=100_000)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    assert usage["completion_tokens"] == WINDOW - usage["prompt_tokens"]
    assert int(answer.headers["x-kvbudget-reserved-blocks"]) == WINDOW // BLOCK_SIZE


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_both_names_of_the_limit_are_understood(gate: "Gate", prompts: "Prompts", field: str) -> None:
    answer = _chat(gate, prompts.of(40, field), **{field: 20})
    assert answer.json()["usage"]["completion_tokens"] == 20
    assert int(answer.headers["x-kvbudget-reserved-blocks"]) == _blocks(answer.json()["usage"]["total_tokens"])


def test_two_samples_reserve_twice(gate: "Gate", prompts: "Prompts") -> None:
    one = _chat(gate, prompts.of(100, "sample"), max_tokens=60)
    two = _chat(gate, prompts.of(100, "sample"), max_tokens=60, n=2)
    assert [len(answer.json()["choices"]) for answer in (one, two)] == [1, 2]
    single, double = (int(answer.headers["x-kvbudget-reserved-blocks"]) for answer in (one, two))
    assert single == _blocks(one.json()["usage"]["total_tokens"])
    assert double == 2 * single


def test_a_prompt_over_the_window_is_refused_in_the_words_that_clients_match_on(
    gate: "Gate", vllm: "Engine", prompts: "Prompts"
) -> None:
    text = prompts.of(1100, "over")
    seen_by_engine = vllm.metric("prompt_tokens_total")
    answer = _chat(gate, text, max_tokens=5)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "This model's maximum context length is 1024 tokens" in error["message"]
    assert answer.headers["x-should-retry"] == "false"
    direct = _chat(vllm, text, max_tokens=5).json()["error"]["message"]
    assert direct.startswith("This model's maximum context length is 1024 tokens"), "the engine's sentence has changed"
    assert vllm.metric("prompt_tokens_total") == seen_by_engine


def test_more_than_the_whole_pool_is_refused_for_good(gate: "Gate", prompts: "Prompts") -> None:
    answer = _chat(gate, prompts.of(500, "never"), max_tokens=400, n=3)  # 3 x 29 blocks of 64
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert answer.headers["x-should-retry"] == "false"
    assert "retry-after" not in answer.headers
    assert gate.reserved_blocks() == 0


def test_the_engine_s_own_refusals_pass_unchanged(gate: "Gate", vllm: "Engine") -> None:
    body = {"model": "no-such-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    through, direct = (
        httpx.post(f"{base}/v1/chat/completions", json=body, timeout=60) for base in (gate.url, vllm.url)
    )
    assert (through.status_code, through.content) == (direct.status_code, direct.content)
    assert through.status_code == 404
    assert gate.reserved_blocks() == 0


def test_the_engine_s_model_list_passes_unchanged(gate: "Gate", vllm: "Engine") -> None:
    through, direct = (httpx.get(f"{base}/v1/models", timeout=60).json()["data"][0] for base in (gate.url, vllm.url))
    assert (through["id"], through["max_model_len"]) == (direct["id"], direct["max_model_len"]) == ("tiny", WINDOW)


def _chat(service: "Gate | Engine", text: str, **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "ignore_eos": True, **fields}
    return httpx.post(f"{service.url}/v1/chat/completions", json=body, timeout=90)


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE)
