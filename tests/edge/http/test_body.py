"""A request body that comes in several reads."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbudget.edge.http.body import BodyReader
from kvbudget.edge.http.heads import HeadError, RequestHead, parse_request_head


def head(framing: bytes) -> RequestHead:
    return parse_request_head(b"POST / HTTP/1.1\r\nHost: a\r\n" + framing)


@settings(deadline=None)  # the machine may be busy with other tests
@given(st.binary(max_size=60), st.binary(max_size=20), st.lists(st.integers(1, 90)), st.booleans())
def test_the_body_and_what_follows_it_are_told_apart_however_they_come(
    body: bytes, behind: bytes, cuts: list[int], chunked: bool
) -> None:
    if chunked:
        wire = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:9], body[9:]) if part) + b"0\r\n\r\n"
        reader = BodyReader(head(b"Transfer-Encoding: chunked"), 60)
    else:
        wire = body
        reader = BodyReader(head(b"Content-Length: %d" % len(body)), 60)
    size = len(wire)
    wire += behind
    places = [0, *sorted({cut for cut in cuts if cut < size}), len(wire)]
    rests = [reader.feed(wire[a:b]) for a, b in itertools.pairwise(places)]
    assert rests == [None] * (len(rests) - 1) + [behind]
    assert reader.whole() == body


@pytest.mark.parametrize("parts", [[b"4\r\n"], [b"2\r\nab\r\n", b"2\r\n"], [b"3\r\nabc\r\n1\r\n"]])
def test_a_chunk_that_would_pass_the_limit_is_refused_when_it_is_announced(parts: list[bytes]) -> None:
    reader = BodyReader(head(b"Transfer-Encoding: chunked"), 3)
    for part in parts[:-1]:
        assert reader.feed(part) is None
    with pytest.raises(HeadError) as refused:
        reader.feed(parts[-1])
    assert (refused.value.status, refused.value.code) == (413, "body_too_large")


def test_a_malformed_chunk_is_refused() -> None:
    with pytest.raises(HeadError) as refused:
        BodyReader(head(b"Transfer-Encoding: chunked"), 3).feed(b"x")
    assert (refused.value.status, refused.value.code) == (400, "bad_chunk")
