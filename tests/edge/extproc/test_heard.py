"""What a message of a data plane means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc_peer import encoded, request_headers, response_headers
from kvbudget.edge.extproc.heard import ProtocolError, answer_of, parsed, start_of
from kvbudget.edge.extproc.wire import BodyMode, ProcessingRequest


def test_headers_become_a_request_whose_authority_is_its_host() -> None:
    kind, message = parsed(request_headers("/v1/completions?a=b", headers={"X-Request-Id": "7"}, ends=True))
    start = start_of(message)
    assert kind == "request_headers"
    assert (start.method, start.target, start.ends) == (b"POST", b"/v1/completions?a=b", True)
    assert start.headers == [(b"host", b"gate"), (b"content-type", b"application/json"), (b"x-request-id", b"7")]
    assert (start.request_mode, start.response_mode) == (BodyMode.BUFFERED, BodyMode.NONE)
    assert start.subset is None


def test_who_says_values_as_text_is_understood_as_well() -> None:
    message = ProcessingRequest()
    for name, value in ((":method", "GET"), (":path", "/"), ("a", "b")):
        message.request_headers.headers.headers.add(key=name, value=value)
    assert start_of(parsed(encoded(message))[1]).headers == [(b"a", b"b")]


def test_without_a_word_on_bodies_they_stream_both_ways() -> None:
    start = start_of(parsed(request_headers(request_mode=None))[1])
    assert (start.request_mode, start.response_mode) == (BodyMode.FULL_DUPLEX, BodyMode.FULL_DUPLEX)


@pytest.mark.parametrize(
    ("said", "subset"),
    [
        (["10.0.0.1:80", " 10.0.0.2:80 "], {"10.0.0.1:80", "10.0.0.2:80"}),
        ("10.0.0.1:80, 10.0.0.2:80", {"10.0.0.1:80", "10.0.0.2:80"}),
        ([], set()),
        ("", set()),
    ],
)
def test_a_subset_is_a_list_or_a_text(said: list[str] | str, subset: set[str]) -> None:
    assert start_of(parsed(request_headers(subset=said))[1]).subset == frozenset(subset)


@pytest.mark.parametrize(
    ("attribute", "forwarded", "peer"),
    [("1.2.3.4:5", "9.9.9.9", "1.2.3.4:5"), ("", "8.8.8.8, 9.9.9.9", "9.9.9.9"), ("", "", "-")],
)
def test_the_peer_is_the_one_that_envoy_names(attribute: str, forwarded: str, peer: str) -> None:
    message = ProcessingRequest.FromString(request_headers(headers={"x-forwarded-for": forwarded} if forwarded else {}))
    if attribute:
        fields = message.attributes["envoy.filters.http.ext_proc"].fields
        fields["source.address"].string_value = attribute
    assert start_of(message).peer == peer


@pytest.mark.parametrize(
    ("by_engine", "details", "is_engine"),
    [
        (True, "", True), (False, "", False), (False, "via_upstream", True),
        (True, "upstream_reset_before_response_started{connection_failure}", False),
    ],
)  # fmt: skip
def test_an_engine_s_answer_is_told_from_envoy_s_own(by_engine: bool, details: str, is_engine: bool) -> None:
    answer = answer_of(parsed(response_headers(503, by_engine=by_engine, details=details, served="10.0.0.1:80"))[1])
    assert (answer.status, answer.by_engine, answer.served) == (503, is_engine, "10.0.0.1:80")


@pytest.mark.parametrize("status", ["", "20", "2000", "abc", "-20", "2 0", "²00"])
def test_an_answer_without_a_status_is_none(status: str) -> None:
    with pytest.raises(ProtocolError):
        answer_of(parsed(response_headers(status))[1])


def understood_or_refused(data: bytes) -> None:
    try:
        kind, message = parsed(data)
        if kind == "request_headers":
            start_of(message)
        elif kind == "response_headers":
            answer_of(message)
    except ProtocolError:
        pass


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_an_error(data: bytes) -> None:
    understood_or_refused(data)


@given(st.integers(0, 200), st.integers(0, 255), st.integers(0, 7))
def test_a_damaged_message_is_one_or_an_error(at: int, value: int, cut: int) -> None:
    data = bytearray(request_headers(subset=["10.0.0.1:80"]))
    data[at % len(data)] = value
    understood_or_refused(bytes(data[: len(data) - cut]))
