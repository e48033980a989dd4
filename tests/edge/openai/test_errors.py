import json

import pytest

from kvbudget.edge.openai.errors import ERROR_TYPES, BadRequestError, context_length_message, error_body, shown


def test_a_body_has_the_four_keys_of_the_api_and_string_codes() -> None:
    assert json.loads(error_body("m", None, "p", "context_length_exceeded")) == {
        "error": {"message": "m", "type": "invalid_request_error", "param": "p", "code": "context_length_exceeded"}
    }


def test_a_given_type_wins_over_the_table() -> None:
    assert json.loads(error_body("m", "odd_error", None, "slow_down"))["error"]["type"] == "odd_error"


def test_overload_and_contention_have_types_of_their_own() -> None:
    assert ERROR_TYPES["server_is_overloaded"] == "service_unavailable_error"
    assert ERROR_TYPES["rate_limit_exceeded"] == "rate_limit_error"


def test_the_context_sentence_has_vllms_form_and_every_number() -> None:
    text = context_length_message(4096, 4000, 500, 96)
    assert text.startswith("This model's maximum context length is 4096 tokens. However, ")
    assert "4000 input tokens" in text
    assert "500 output tokens" in text
    assert "largest max_tokens that fits this prompt is 96" in text


def test_the_context_sentence_says_when_nothing_fits() -> None:
    assert "No max_completion_tokens fits" in context_length_message(10, 12, 5, 0, field="max_completion_tokens")


def test_a_lone_surrogate_in_a_message_still_makes_a_body() -> None:
    assert json.loads(error_body("a\ud800b", None, None, "invalid_value"))["error"]["message"] == "a?b"


@pytest.mark.parametrize(("value", "text"), [({"a": 1}, "a JSON object"), ([1], "a JSON array"), (True, "True")])
def test_a_clients_value_is_shown_short(value: object, text: str) -> None:
    assert shown(value) == text
    assert len(shown("x" * 1000)) < 70


def test_a_bad_request_carries_its_status_and_body() -> None:
    error = BadRequestError("m", "n", "empty_prompt")
    assert error.status == 400
    assert json.loads(error.body())["error"]["code"] == "empty_prompt"
