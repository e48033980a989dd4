import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.edge.http.exchange import Exchange
from kvbudget.edge.http.heads import HeadError, RequestHead, parse_request_head, parse_response_head
from kvbudget.edge.http.repeats import KnownAnswers, KnownRequest, KnownRequests

FIRST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"
REST = b"\r\nAuthorization: Bearer x\r\n\r\n"


def learned(raw: bytes) -> KnownRequest | None:
    return KnownRequests().learn(raw, parse_request_head(raw[:-4]))


def known(raw: bytes = FIRST + b"Content-Length: 17" + REST) -> KnownRequest:
    found = learned(raw)
    assert found is not None
    return found


def read(raw: bytes) -> tuple[RequestHead, int] | None:
    """The head and where it ends, by the parser alone."""
    stop = raw.find(b"\r\n\r\n")
    try:
        return None if stop < 0 else (parse_request_head(raw[:stop]), stop + 4)
    except HeadError:
        return None


def test_a_head_that_differs_in_its_length_alone_is_recognised() -> None:
    one = known()
    raw = FIRST + b"Content-Length: 123456" + REST
    assert one.end_in(raw + b'{"model"') == len(raw)
    assert one.length == 123456
    assert one.headers(one.length) == parse_request_head(raw[:-4]).headers


@pytest.mark.parametrize(
    "digits", [b"", b"-1", b"+1", b" 1", b"1 ", b"1a", b"0x1", b"1\n", b"1" * 19, b"1, 1", b"0", b"01", b"007"]
)
def test_what_is_no_plain_length_is_left_to_the_parser(digits: bytes) -> None:
    assert known().end_in(FIRST + b"Content-Length: " + digits + REST) == 0


def test_a_head_that_has_not_come_whole_is_not_recognised() -> None:
    raw = FIRST + b"Content-Length: 17" + REST
    assert [known().end_in(raw[:size]) for size in range(len(raw))] == [0] * len(raw)


@pytest.mark.parametrize(
    "raw",
    [
        FIRST + b"Transfer-Encoding: chunked" + REST,
        FIRST + b"Expect: 100-continue\r\nContent-Length: 17" + REST,
        b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n",
        FIRST + b"Content-Length: 17  " + REST,
        FIRST + b"X-Long: " + b"a" * 9000 + b"\r\nContent-Length: 17" + REST,
    ],
)
def test_heads_whose_body_is_found_otherwise_and_long_ones_are_not_remembered(raw: bytes) -> None:
    assert learned(raw) is None


@given(data=st.data())
def test_what_is_recognised_means_what_the_parser_reads(data: st.DataObject) -> None:
    """However a known head is changed: where it is recognised, the parser reads the same from it."""
    one = known()
    raw = bytearray(FIRST + b"Content-Length: %d" % data.draw(st.integers(0, 10**19)) + REST + b"body")
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(raw) - 1))
        change = data.draw(st.sampled_from([b"", b"\r\n", b"\n", b"0", b" ", b"\0", b"Content-Length: 5\r\n"]))
        raw[at : at + data.draw(st.integers(0, 1))] = change
    end = one.end_in(bytes(raw))
    if end:
        head = one.head._replace(length=one.length, headers=one.headers(one.length))
        assert read(bytes(raw)) == (head, end)


def test_an_answer_without_a_body_is_left_to_the_parser() -> None:
    answers = KnownAnswers()
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
    assert answers.learn(raw, parse_response_head(raw[:-4], b"POST")) is not None
    assert answers.find(raw.replace(b"5", b"71"))[1] == len(raw) + 1
    assert answers.find(raw.replace(b"5", b"0")) == (None, 0)


def test_plain_answers_and_streams_are_both_recognised() -> None:
    answers = KnownAnswers()
    plain = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
    stream = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    for raw in (plain, stream):
        answers.learn(raw, parse_response_head(raw[:-4], b"POST"))
    for raw in (plain, stream, stream, plain):
        assert answers.find(raw + b"12345")[1] == len(raw)


@pytest.mark.parametrize("status", [b"204 No Content", b"429 Too Many Requests", b"500 Oh"])
def test_answers_other_than_200_are_not_remembered(status: bytes) -> None:
    raw = b"HTTP/1.1 " + status + b"\r\nContent-Length: 5\r\n\r\n"
    assert KnownAnswers().learn(raw, parse_response_head(raw[:-4], b"POST")) is None


def test_heads_that_differ_each_time_are_kept_within_bounds_and_seldom_learned() -> None:
    requests = KnownRequests()
    kept = 0
    for number in range(20_000):
        raw = FIRST + b"traceparent: %d\r\nContent-Length: 17" % number + REST
        kept += requests.learn(raw, parse_request_head(raw[:-4])) is not None
    assert kept < 500
    assert len(requests._by_bytes) <= 256


def test_connections_share_what_is_known_of_the_same_head() -> None:
    requests = KnownRequests()
    raw = FIRST + b"Content-Length: 17" + REST
    again = raw.replace(b"17", b"18")
    first = requests.learn(raw, parse_request_head(raw[:-4]))
    assert requests.learn(again, parse_request_head(again[:-4])) is first
    assert requests.last is first


def test_an_exchange_of_a_known_head_tells_its_own_length() -> None:
    one = known()
    exchange = Exchange(one.head, b"x" * 99, "127.0.0.1:1", 0, carrier=None, known=one)  # type: ignore[arg-type]
    assert exchange.header(b"content-length") == b"99"
    assert exchange.header(b"authorization") == b"Bearer x"
