"""What is known of a request that the app never sees, and how it is refused."""

import json

import pytest

from kvbudget.edge.http.refused import NOTHING_ASKED, Asked, begun_request, closing_answer, openai_answer


@pytest.mark.parametrize(
    ("buffer", "asked"),
    [
        (b"POST /v1/messages HTTP/1.1\r\nHost: x\r\n", Asked(b"POST", b"/v1/messages", [(b"host", b"x")])),
        (b"BREW /a?b=/c HTTP/9", Asked(b"BREW", b"/a", [])),
        (b"POST HTTP://h:1/a#b", Asked(b"POST", b"/a", [])),
        (b"POST /a\r\nx-id:  1 2 \r\n", Asked(b"POST", b"/a", [(b"x-id", b"1 2")])),
        (b"GET /a HTTP/1.1\r\nno line\r\nA : 1\r\nb: \x00\r\nc: \r\nD:4", Asked(b"GET", b"/a", [(b"d", b"4")])),
        (b"GET /a HTTP/1.1\r\nA: 1\r\n\r\nb: in the body\r\n", Asked(b"GET", b"/a", [(b"a", b"1")])),
        (b"GET /a HTTP/1.1\r\nA: 1\nb: 2\r\n", Asked(b"GET", b"/a", [])),
        (b"POST /v1/mess", NOTHING_ASKED),  # nobody knows how it goes on
        (b"POST  /a HTTP/1.1", NOTHING_ASKED),
        (b"/a HTTP/1.1\r\n", NOTHING_ASKED),
        (b"POST h/a HTTP/1.1", NOTHING_ASKED),
        (b"\r\n", NOTHING_ASKED),
        (b"", NOTHING_ASKED),
    ],
)  # fmt: skip
def test_what_a_head_at_fault_says_is_read_as_far_as_it_is_plain(buffer: bytes, asked: Asked) -> None:
    assert begun_request(buffer) == asked


@pytest.mark.parametrize(
    ("status", "kind"), [(400, "invalid_request_error"), (429, "rate_limit_error"), (503, "server_error")]
)
def test_errors_have_the_form_that_openai_clients_read(status: int, kind: str) -> None:
    error = {"message": "m", "type": kind, "param": None, "code": "c"}
    headers, body = openai_answer(status, "c", "m", NOTHING_ASKED)
    assert json.loads(body) == {"error": error}
    assert dict(headers).get(b"retry-after") == (b"1" if status == 503 else None)


def test_the_answer_before_a_close_says_so_and_has_no_body_for_head() -> None:
    told = closing_answer(400, [(b"a", b"b")], b"{}")
    assert told == b"HTTP/1.1 400 Bad Request\r\na: b\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"
    assert closing_answer(400, [(b"a", b"b")], b"{}", b"HEAD") == told[:-2]
