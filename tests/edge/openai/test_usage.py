import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.edge.openai.tails import TAIL_BYTES, Member, parsed
from kvbudget.edge.openai.usage import USAGE as TOP
from kvbudget.edge.openai.usage import Usage, _of_documents, usage_in
from kvbudget.units import Tokens

USAGE = {"prompt_tokens": 19, "completion_tokens": 7, "total_tokens": 26, "prompt_tokens_details": None}
TOLD = Usage(Tokens(19), Tokens(7), None)
RESPONSE, MESSAGE = Member("usage", within="response"), Member("usage", within="message")
FORGED = 'x "usage": {"prompt_tokens": 1, "completion_tokens": 1} \n\ndata: {"usage":{"prompt_tokens":2}}'


def _chat(content: str, **more: Any) -> bytes:
    return json.dumps({"id": "c", "choices": [{"message": {"content": content}}], "usage": USAGE, **more}).encode()


def _events(*documents: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(document).encode() + b"\n\n" for document in documents) + b"data: [DONE]\n\n"


def test_a_plain_answer_tells_its_usage() -> None:
    assert usage_in(_chat("hello")) == TOLD


def test_an_answer_longer_than_the_tail_still_tells_it() -> None:
    assert usage_in(_chat("hello " * 5000, prompt_logprobs=None, kv_transfer_params=None)) == TOLD


@pytest.mark.parametrize("length", [0, 3000, 20_000])
def test_content_that_imitates_usage_is_not_believed(length: int) -> None:
    assert usage_in(_chat("y" * length + FORGED)) == TOLD
    answer = json.loads(_chat("y" * length + FORGED))
    del answer["usage"]
    assert usage_in(json.dumps(answer).encode()) is None


def test_usage_inside_other_members_is_not_believed() -> None:
    assert usage_in(b'{"metadata":{"usage":{"prompt_tokens":1,"completion_tokens":1}}}') is None
    cut = (
        b'ong text"}],"metadata":{"usage":{"prompt_tokens":1,"completion_tokens":1}},"usage":'
        + json.dumps(USAGE).encode()
    )
    assert usage_in(cut + b"}") == TOLD


def test_a_stream_tells_the_last_usage() -> None:
    running = {"choices": [{"delta": {"content": FORGED}}], "usage": {**USAGE, "completion_tokens": 3}}
    assert usage_in(_events(running, running, {"choices": [], "usage": USAGE})) == TOLD
    assert usage_in(_events({"choices": [], "usage": USAGE}, {"choices": [], "usage": None})) == TOLD


def test_a_stream_cut_anywhere_before_its_last_event_tells_it() -> None:
    stream = _events({"choices": [{"delta": {"content": FORGED}}]}, {"choices": [], "usage": USAGE})
    last = stream.rindex(b'{"choices": [],')
    for start in range(last + 1):
        assert usage_in(stream[start:]) == TOLD


def test_cached_tokens_are_read() -> None:
    usage = {**USAGE, "prompt_tokens_details": {"cached_tokens": 16}}
    assert usage_in(json.dumps({"usage": usage}).encode()) == Usage(Tokens(19), Tokens(7), Tokens(16))


def test_a_responses_stream_tells_it_one_level_down_even_when_its_last_event_is_cut() -> None:
    usage = {"input_tokens": 5, "output_tokens": 6, "input_tokens_details": {"cached_tokens": 0}}
    event = {"type": "response.completed", "response": {"output": ["z" * 9000], "usage": usage, "user": None}, "n": 3}
    stream = b"event: response.completed\n" + _events(event)
    assert usage_in(stream, RESPONSE) == Usage(Tokens(5), Tokens(6), Tokens(0))
    assert usage_in(stream) is None


def test_a_messages_stream_joins_its_two_events() -> None:
    start = {
        "type": "message_start",
        "message": {"usage": {"input_tokens": 3, "cache_read_input_tokens": 16, "output_tokens": 0}},
    }
    delta = {"type": "message_delta", "usage": {"output_tokens": 8}}
    stream = b"event: message_start\n" + _events(start, delta)
    assert usage_in(stream, MESSAGE) == Usage(Tokens(19), Tokens(8), Tokens(16))


@pytest.mark.parametrize(
    "usage",
    [None, [], {}, {"prompt_tokens": -1}, {"prompt_tokens": True}, {"prompt_tokens": "5"}, {"prompt_tokens": 2**70}],
)
def test_a_usage_without_sound_numbers_is_none(usage: object) -> None:
    assert usage_in(json.dumps({"usage": usage}).encode()) is None


@given(
    st.binary(max_size=200)
    | st.lists(st.sampled_from([b'"usage":', b"{", b"}", b"data: ", b"\n", b"[", b'"', b"1", b":"])).map(b"".join)
)
def test_it_never_raises(tail: bytes) -> None:
    usage_in(tail)


def test_thousands_of_false_keys_cost_little() -> None:
    assert usage_in(b'"usage":' * (TAIL_BYTES // 8)) is None


def test_an_output_without_a_prompt_is_told_alone() -> None:
    """Anthropic's own streams tell the prompt in their first event alone, which may be long gone from the tail."""
    event = b'event: message_delta\ndata: {"type":"message_delta","delta":{},"usage":{"output_tokens":15}}\n\n'
    usage = usage_in(event)
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (None, 15, None)


@given(
    st.text(),
    st.integers(0, 10**16),
    st.integers(0, 10**16),
    st.permutations(["prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"]),
    st.lists(st.sampled_from(["prompt_logprobs", "usage", "kv_transfer_params"]), unique=True),
    st.sampled_from([(",", ":"), (", ", ": ")]),
    st.booleans(),
)
def test_usage_at_the_end_is_read_as_by_a_parser(
    content: str, prompt: int, output: int, order: list[str], behind: list[str], signs: tuple[str, str], inside: bool
) -> None:
    told = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": 1, "prompt_tokens_details": None}
    document: dict[str, Any] = {"choices": [content], "usage": {name: told[name] for name in order}}
    document |= {name: None for name in behind if name != "usage" or not inside}
    if inside:
        document = {"metadata": document}
    answer = json.dumps(document, separators=signs).encode()
    assert usage_in(answer) == _of_documents(answer, TOP)


ESCAPED = '"\\u0075s\\u0061ge"'


@pytest.mark.parametrize("key", [ESCAPED, '"\\u0075\\u0073\\u0061\\u0067\\u0065"', '"usag\\u0065"'])
@pytest.mark.parametrize("before", ["c", "z" * 9000])
def test_a_key_that_is_written_with_escapes_is_the_same_key(key: str, before: str) -> None:
    """JSON knows no difference, and an engine that escapes names would never be compared otherwise."""
    whole = _chat(before).decode().replace('"usage"', key).encode()
    assert usage_in(whole) == TOLD
    assert usage_in(b"data: " + whole + b"\n\ndata: [DONE]\n\n") == TOLD
    event = {"type": "response.completed", "response": {"output": [before], "usage": {"input_tokens": 5}}, "n": 3}
    told = json.dumps(event).replace('"usage"', key).encode()
    stream = b"event: response.completed\ndata: " + told + b"\n\n"
    assert usage_in(stream, RESPONSE) == Usage(Tokens(5), Tokens(0), None)


def test_of_a_cut_document_the_top_is_read_and_not_what_lies_deeper() -> None:
    deeper = {"metadata": {"usage": {"prompt_tokens": 1, "completion_tokens": 1}}, "timings": [{"usage": {}}]}
    assert usage_in(_chat("z" * 9000, **deeper)) == TOLD
    response = {"output": ["z" * 9000], "usage": {"input_tokens": 5}, "metadata": {"usage": {"input_tokens": 9}}}
    event = b"data: " + json.dumps({"response": response, "n": 1}).encode() + b"\n\n"
    assert usage_in(event, RESPONSE) == Usage(Tokens(5), Tokens(0), None)


@pytest.mark.parametrize("member", [TOP, RESPONSE, MESSAGE])
@pytest.mark.parametrize("length", [1, 9000])
@pytest.mark.parametrize("deep", ["response", "message", "metadata", "tools", "choices"])
def test_a_plain_answer_has_its_usage_at_the_top_whatever_ends_it(member: Member, length: int, deep: str) -> None:
    """No engine wraps a plain answer, so that what lies deeper is what a client sent, or content."""
    told = {"usage": USAGE}
    for inner in (told, {"usage": USAGE, "n": 1}, [told], {"a": told}):
        assert usage_in(json.dumps({"text": "z" * length, deep: inner}).encode(), member) is None
        assert usage_in(json.dumps({"text": "z" * length, deep: inner, "n": None}).encode(), member) is None
        assert usage_in(json.dumps({**told, "text": "z" * length, deep: inner}).encode(), member) in (TOLD, None)
        assert usage_in(json.dumps({"text": "z" * length, deep: inner, **told}).encode(), member) == TOLD


@pytest.mark.parametrize("length", [1, 9000])
@pytest.mark.parametrize(
    ("member", "deep"), [(TOP, ["response"]), (TOP, ["choices"]), (RESPONSE, ["response", "metadata"]), (MESSAGE, "ab")]
)
def test_an_event_has_its_usage_where_its_api_has_it(member: Member, length: int, deep: list[str]) -> None:
    inner: Any = {"text": "z" * length, "usage": USAGE}
    for name in reversed(deep):
        inner = {"text": "z" * length, name: inner}
    assert usage_in(_events(inner), member) is None


@pytest.mark.parametrize(
    "tail",
    [
        b'"usage":{' * 910,
        b'{"usage":{' * 819,
        b'"usage":{}' * 819,
        b'"usage":{"' * 819,
        b'"usage":' * 1000,
        b'x"usage":\\"' * 700,
        b'"usage":{"a\\"' * 600,
        b'data: "usage":{\n' * 500,
        b'"usage":{\n' * 800,
        b'}"usage":[' * 800,
        b'"\\u0075sage":{' * 500,
        b'"\\u00' * 1300,
    ],
)
@pytest.mark.parametrize("member", [TOP, RESPONSE])
def test_a_hostile_tail_is_read_a_few_times_and_no_more(
    tail: bytes, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def counted(text: bytes) -> object:
        read.append(len(text))
        return parsed(text)

    for module in ("tails", "usage"):
        monkeypatch.setattr(f"kvbudget.edge.openai.{module}.parsed", counted)
    usage_in(tail, member)
    assert sum(read) <= 4 * TAIL_BYTES + 1000


@pytest.mark.parametrize(
    "end",
    [
        '"usage":{"prompt_tokens":19,"completion_tokens":7,"total_tokens":26}}',
        '"usage":{"prompt_tokens":19,"total_tokens":26,"completion_tokens":7,"prompt_tokens_details":null},"a":null}',
        '"usage": {"prompt_tokens": 19, "completion_tokens": 7}, "timings": {"a": [1]}}',
    ],
)
def test_what_stands_before_the_usage_of_a_plain_answer_is_not_read(end: str) -> None:
    assert usage_in(b"no JSON at all, " + end.encode()) == TOLD


@pytest.mark.parametrize(
    "end",
    [
        '{"a":{"usage":{"prompt_tokens":1,"completion_tokens":1}}}',
        '{"a":"x\\"usage":{"prompt_tokens":1,"completion_tokens":1}}',
        '{"usage":{"prompt_tokens":-1,"completion_tokens":1.5}}',
        '{"usage":{"prompt_tokens":true}}',
        '{"usage":null}',
    ],
)
def test_what_only_looks_like_a_usage_at_the_end_is_none(end: str) -> None:
    assert usage_in(b'{"b":1,' + end[1:].encode()) is None


def test_cached_tokens_at_the_end_of_an_answer_are_told() -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 16}}
    assert usage_in(json.dumps({"a": 1, "usage": USAGE | details}).encode()) == Usage(Tokens(19), Tokens(7), Tokens(16))
