import json

from kvbudget.edge.engine import wire
from kvbudget.edge.engine.asks import Ask
from kvbudget.edge.engine.text import Prompt
from kvbudget.simulate.paged_engine import FinishReason


def ask(include_usage: bool = False) -> Ask:
    return Ask((Prompt(10, b""),), (5,), 1, None, False, True, include_usage, False)


def test_a_name_with_quotes_does_not_break_the_events() -> None:
    events = wire.Events(ask(), True, 'chatcmpl-"x"', 1, 'a"b\\c')
    event = events.token(0, "né".encode(), FinishReason.LENGTH, 1)
    parsed = json.loads(event.removeprefix(b"data: "))
    assert (parsed["id"], parsed["model"]) == ('chatcmpl-"x"', 'a"b\\c')
    assert parsed["choices"][0]["delta"] == {"content": "né"}


def test_an_event_is_compact_json_in_utf8_between_data_and_an_empty_line() -> None:
    event = wire.Events(ask(), False, "cmpl-1", 7, "m").token(2, "日 ".encode(), None, 1)
    head = 'data: {"id":"cmpl-1","object":"text_completion","created":7,"model":"m","choices":[{"index":2,"text":"日 ",'
    tail = '"logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}\n\n'
    assert event == (head + tail).encode()


def test_usage_comes_before_the_end_only_when_it_was_asked_for() -> None:
    assert wire.Events(ask(), True, "i", 1, "m").end(5) == b"data: [DONE]\n\n"
    usage, done, rest = wire.Events(ask(include_usage=True), True, "i", 1, "m").end(5).split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    assert json.loads(usage[6:])["usage"]["total_tokens"] == 15


def test_completions_have_no_role_event() -> None:
    assert wire.Events(ask(), False, "i", 1, "m").roles(3) == b""
    assert wire.Events(ask(), True, "i", 1, "m").roles(3).count(b'"role":"assistant"') == 3


def test_a_plain_body_names_text_and_reason_of_each_choice() -> None:
    choices = [(b" fun", FinishReason.LENGTH), (b"", FinishReason.STOP)]
    body = json.loads(wire.plain_body(ask(), True, "chatcmpl-1", 1, "m", choices, 2))
    assert body["object"] == "chat.completion"
    assert [(c["message"]["content"], c["finish_reason"]) for c in body["choices"]] == [
        (" fun", "length"),
        ("", "stop"),
    ]
    assert body["usage"] == {
        "prompt_tokens": 10,
        "total_tokens": 12,
        "completion_tokens": 2,
        "prompt_tokens_details": None,
    }
