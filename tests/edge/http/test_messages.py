"""Heads on the wire."""

import json

import pytest

from kvbudget.edge.http.messages import (
    end_to_end,
    has_no_body,
    openai_error_body,
    serialise_request_head,
    serialise_response_head,
    status_phrase,
)


def test_headers_of_one_connection_do_not_cross() -> None:
    headers = [
        (b"connection", b"keep-alive, X-Private"),
        (b"keep-alive", b"timeout=5"),
        (b"x-private", b"1"),
        (b"te", b"trailers"),
        (b"upgrade", b"h2c"),
        (b"proxy-authorization", b"x"),
        (b"transfer-encoding", b"chunked"),
        (b"authorization", b"Bearer x"),
        (b"x-mine", b"1"),
    ]
    assert end_to_end(headers, frozenset({b"x-mine"})) == [(b"authorization", b"Bearer x")]


def test_a_peer_cannot_have_content_headers_dropped_by_naming_them() -> None:
    headers = [(b"connection", b"content-length, content-type"), (b"content-length", b"3"), (b"content-type", b"a/b")]
    assert end_to_end(headers) == headers[1:]


@pytest.mark.parametrize("value", [b"a\r\nSet-Cookie: x", b"a\nb", b"a\rb", b"a\0b"])
def test_a_header_cannot_carry_another(value: bytes) -> None:
    with pytest.raises(ValueError, match="CR, LF or NUL"):
        serialise_response_head(200, [(b"x", value)])
    with pytest.raises(ValueError, match="CR, LF or NUL"):
        serialise_request_head(b"GET", b"/", [(value, b"x")])


@pytest.mark.parametrize(("method", "target"), [(b"GET", b"/ x"), (b"GET", b""), (b"", b"/"), (b"GET", b"/\r\nA: b")])
def test_a_request_line_cannot_carry_more(method: bytes, target: bytes) -> None:
    with pytest.raises(ValueError, match=r"CR|request line"):
        serialise_request_head(method, target, [])


def test_known_and_unknown_codes_make_a_status_line() -> None:
    assert serialise_response_head(429, [(b"a", b"b")]) == b"HTTP/1.1 429 Too Many Requests\r\na: b\r\n\r\n"
    assert serialise_response_head(599, []) == b"HTTP/1.1 599 \r\n\r\n"
    assert status_phrase(599) == b""
    assert status_phrase(200) == b"OK"


def test_which_answers_end_with_their_head() -> None:
    assert [status for status in (100, 199, 200, 204, 205, 304, 404) if has_no_body(status)] == [100, 199, 204, 304]


@pytest.mark.parametrize(
    ("status", "kind"), [(400, "invalid_request_error"), (429, "rate_limit_error"), (503, "server_error")]
)
def test_errors_have_the_form_that_openai_clients_read(status: int, kind: str) -> None:
    error = {"message": "m", "type": kind, "param": None, "code": "c"}
    assert json.loads(openai_error_body(status, "c", "m")) == {"error": error}
