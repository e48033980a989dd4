import json
from typing import Any

import pytest

from kvbudget.edge.http.exchange import ErrorForm
from kvbudget.edge.openai.errors import context_length_message
from kvbudget.edge.surfaces.dialects import ANTHROPIC, OPENAI, RESPONSES, TGI


def body(form: ErrorForm, status: int = 400, code: str = "invalid_value", message: str = "m") -> Any:
    return json.loads(form.body(status, code, message, param="p", request_id=b"r1"))


def event(form: ErrorForm) -> tuple[str, Any]:
    lines = form.event("upstream_failed", "broken").decode().removesuffix("\n\n").split("\n")
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event:")]
    return "".join(names), json.loads(lines[-1].removeprefix("data:"))


def test_openai_has_one_object_for_all_its_apis() -> None:
    error = {"message": "m", "type": "invalid_request_error", "param": "p", "code": "invalid_value"}
    assert body(OPENAI) == body(RESPONSES) == {"error": error}
    assert event(OPENAI)[1]["error"]["code"] == "upstream_failed"


def test_a_broken_stream_of_the_responses_api_ends_with_a_typed_event() -> None:
    name, told = event(RESPONSES)
    assert (name, told["type"], told["code"], told["message"]) == ("error", "error", "upstream_failed", "broken")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"), (401, "authentication_error"), (404, "not_found_error"),
        (413, "request_too_large"), (422, "invalid_request_error"), (429, "rate_limit_error"), (500, "api_error"),
        (503, "overloaded_error"), (504, "timeout_error"), (529, "overloaded_error"), (599, "api_error"),
    ],
)  # fmt: skip
def test_anthropic_has_a_type_for_each_status(status: int, kind: str) -> None:
    assert body(ANTHROPIC, status) == {
        "type": "error",
        "error": {"type": kind, "message": "m"},
        "request_id": "r1",
    }


def test_a_broken_stream_of_the_messages_api_ends_with_an_error_event() -> None:
    assert event(ANTHROPIC) == ("error", {"type": "error", "error": {"type": "api_error", "message": "broken"}})


def test_clients_that_shorten_by_themselves_find_the_sentence_that_they_look_for() -> None:
    alone = body(ANTHROPIC, message=context_length_message(100, 120, 5, 0))["error"]["message"]
    assert alone.startswith("prompt is too long: 120 tokens > 99 maximum. This model's maximum context length is 100")
    together = body(ANTHROPIC, message=context_length_message(100, 90, 20, 10))["error"]["message"]
    assert together.startswith("input length and `max_tokens` exceed context limit: 90 + 20 > 100, ")


@pytest.mark.parametrize(
    ("status", "kind"), [(400, "validation"), (429, "overloaded"), (503, "overloaded"), (502, "generation")]
)
def test_tgi_has_a_flat_object(status: int, kind: str) -> None:
    assert body(TGI, status) == {"error": "m", "error_type": kind}
    assert event(TGI) == ("", {"error": "broken", "error_type": "generation"})


@pytest.mark.parametrize("form", [OPENAI, RESPONSES, ANTHROPIC, TGI])
def test_a_message_with_a_lone_surrogate_can_be_sent(form: ErrorForm) -> None:
    assert b"?" in form.body(400, "invalid_value", "\ud800")
    assert form.event("upstream_failed", "\ud800").endswith(b"\n\n")
