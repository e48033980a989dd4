from typing import Any

import orjson
import pytest

from kvbudget.edge.engine import asks, text
from kvbudget.edge.engine.asks import ApiError
from kvbudget.edge.engine.settings import EngineSettings

SETTINGS = EngineSettings(max_model_len=1024)
HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]


def refused(body: dict[str, Any], chat: bool = True) -> tuple[int, dict[str, Any]]:
    with pytest.raises(ApiError) as caught:
        (asks.parse_chat if chat else asks.parse_completion)(body, SETTINGS)
    error = orjson.loads(caught.value.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == caught.value.status
    return caught.value.status, error


def test_a_chat_without_max_tokens_gets_the_rest_of_the_window() -> None:
    ask = asks.parse_chat({"messages": HELLO}, SETTINGS)
    assert ask.prompt_tokens == 10
    assert ask.max_tokens == (1014,)
    assert (ask.n, ask.seed, ask.stream, ask.ignore_eos) == (1, None, False, False)


def test_a_completion_without_max_tokens_gets_16() -> None:
    assert asks.parse_completion({"prompt": "hello"}, SETTINGS).max_tokens == (16,)


def test_prompt_and_max_tokens_over_the_window_are_clipped_in_silence() -> None:
    ask = asks.parse_completion({"prompt": "x" * 4000, "max_tokens": 100}, SETTINGS)
    assert ask.max_tokens == (24,)


def test_max_completion_tokens_wins_over_max_tokens() -> None:
    body = {"messages": HELLO, "max_tokens": 5, "max_completion_tokens": 7}
    assert asks.parse_chat(body, SETTINGS).max_tokens == (7,)


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [("hello", [2]), (["hello", "you"], [2, 1]), ([1, 2, 3], [3]), ([[1, 2], [3]], [2, 1])],
)
def test_a_completion_prompt_has_four_forms(prompt: object, tokens: list[int]) -> None:
    ask = asks.parse_completion({"prompt": prompt}, SETTINGS)
    assert [each.tokens for each in ask.prompts] == tokens


def test_ids_from_tokenize_are_the_same_prompt_as_the_text() -> None:
    ids = asks.parse_tokenize({"prompt": "hello wörld"}, SETTINGS)
    by_ids = asks.parse_completion({"prompt": ids}, SETTINGS)
    assert by_ids.prompts == asks.parse_completion({"prompt": "hello wörld"}, SETTINGS).prompts


def test_tokenize_counts_a_chat_as_usage_does_tools_and_parts_included() -> None:
    body = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        ],
        "tools": [{"type": "function"}],
    }
    ask = asks.parse_chat(body, SETTINGS)
    assert ask.prompt_tokens == len(asks.parse_tokenize(body, SETTINGS))
    assert ask.prompt_tokens == (4 + 1 + 2) + (4 + 3 + 3) + 3 + 6


def test_a_prompt_over_the_window_is_refused_with_the_sentence_that_clients_match_on() -> None:
    status, error = refused({"prompt": "x" * 4400}, chat=False)
    assert (status, error["type"], error["param"]) == (400, "BadRequestError", "input_tokens")
    assert error["message"].startswith(
        "This model's maximum context length is 1024 tokens. However, your prompt contains 1100 input tokens, "
        "which exceeds this limit even without any output tokens."
    )


def test_a_prompt_that_fills_the_window_leaves_no_token() -> None:
    status, error = refused({"prompt": "x" * 4096}, chat=False)
    assert (status, error["message"]) == (400, "max_tokens must be at least 1, got 0.")


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_max_tokens_over_the_window_alone_is_refused_by_the_name_that_was_used(field: str) -> None:
    status, error = refused({"messages": HELLO, field: 1025})
    assert (status, error["param"]) == (400, field)
    assert error["message"].startswith(f"{field}=1025 cannot be greater than max_model_len")


def test_an_unknown_model_is_not_found_before_anything_else() -> None:
    status, error = refused({"model": "gpt", "messages": HELLO, "max_tokens": 9999})
    assert (status, error["type"], error["param"]) == (404, "NotFoundError", "model")
    assert error["message"] == "The model `gpt` does not exist."


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages"),
        ({"messages": [{"content": "hi"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [7]}]}, "messages"),
        ({"messages": HELLO, "max_tokens": 0}, "max_tokens"),
        ({"messages": HELLO, "max_tokens": "5"}, "max_tokens"),
        ({"messages": HELLO, "max_tokens": 5.0}, "max_tokens"),
        ({"messages": HELLO, "n": 0}, "n"),
        ({"messages": HELLO, "n": 16_385}, "n"),
        ({"messages": HELLO, "n": True}, "n"),
        ({"messages": HELLO, "best_of": 3}, "best_of"),
        ({"messages": HELLO, "seed": "x"}, "seed"),
        ({"messages": HELLO, "stream": 1}, "stream"),
        ({"messages": HELLO, "tools": "x"}, "tools"),
        ({"messages": HELLO, "stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": HELLO, "stream": True, "stream_options": []}, None),
        ({"messages": HELLO, "stream": True, "stream_options": [1]}, "stream_options"),
        ({"messages": HELLO, "use_beam_search": True}, "use_beam_search"),
        ({"messages": HELLO, "prompt_logprobs": 0}, "prompt_logprobs"),
    ],
)
def test_a_bad_field_is_refused_by_name(body: dict[str, Any], param: str | None) -> None:
    if param is None:
        assert asks.parse_chat(body, SETTINGS).stream
        return
    status, error = refused(body)
    assert (status, error["param"]) == (400, param)


@pytest.mark.parametrize(
    "prompt", [None, "", [], 5, ["a", 1], [[]], [True], {"a": 1}, [[1], "a"], [text.VOCABULARY + 9]]
)
def test_a_prompt_that_is_none_of_the_four_forms_is_refused(prompt: object) -> None:
    status, error = refused({"prompt": prompt}, chat=False)
    assert (status, error["param"]) == (400, "prompt")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'"x"', b'{"a": "\\ud800"}', b"\xff"])
def test_a_body_that_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        asks.parse_json(data)
    assert caught.value.status == 400


def test_tokenize_wants_a_prompt_or_messages() -> None:
    with pytest.raises(ApiError):
        asks.parse_tokenize({}, SETTINGS)
