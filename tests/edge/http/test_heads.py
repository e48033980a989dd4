"""Lawful and unlawful heads, apart from any socket."""

import pytest

from kvbudget.edge.http.heads import (
    Framing,
    HeadError,
    RequestHead,
    parse_request_head,
    parse_response_head,
    strip_empty_lines,
)


def request(first: bytes = b"POST /v1/x HTTP/1.1", *lines: bytes, host: bool = True) -> RequestHead:
    return parse_request_head(b"\r\n".join([first, *([b"Host: a"] if host else []), *lines]))


def test_a_request_head_is_read_with_lower_cased_names_and_bare_values() -> None:
    head = request(b"GET /a?b=c%20d HTTP/1.1", b"X-Empty:", b"X-Two:  a b \t", b"x-two: \xe9")
    assert head.method == b"GET"
    assert head.target == b"/a?b=c%20d"
    assert head.headers == [(b"host", b"a"), (b"x-empty", b""), (b"x-two", b"a b"), (b"x-two", b"\xe9")]
    assert (head.length, head.chunked, head.keep_alive, head.http_1_1) == (0, False, True, True)


@pytest.mark.parametrize(
    ("version", "line", "keeps"),
    [
        (b"1.1", b"A: b", True),
        (b"1.1", b"Connection: Close", False),
        (b"1.1", b"Connection: x, close", False),
        (b"1.0", b"A: b", False),
        (b"1.0", b"Connection: Keep-Alive", True),
        (b"1.0", b"Connection: keep-alive, close", False),
    ],
)
def test_the_connection_is_kept_as_version_and_options_say(version: bytes, line: bytes, keeps: bool) -> None:
    assert request(b"GET / HTTP/" + version, line).keep_alive is keeps


@pytest.mark.parametrize(
    ("target", "path", "host"),
    [
        (b"http://b:81/x?y", b"/x?y", b"b:81"),
        (b"HTTP://b", b"/", b"b"),
        (b"https://b?q", b"/?q", b"b"),
        (b"/http://b/", b"/http://b/", b"a"),
    ],
)
def test_an_absolute_target_becomes_a_path_and_its_host_counts(target: bytes, path: bytes, host: bytes) -> None:
    head = request(b"GET %s HTTP/1.1" % target)
    assert head.target == path
    assert [value for name, value in head.headers if name == b"host"] == [host]


@pytest.mark.parametrize(
    ("status", "first", "lines"),
    [
        (400, b"POST / HTTP/1.1", [b"Content-Length: 1", b"Transfer-Encoding: chunked"]),
        (400, b"POST / HTTP/1.1", [b"Transfer-Encoding: chunked", b"Content-Length: 1"]),
        (400, b"POST / HTTP/1.1", [b"Content-Length: 1", b"Content-Length: 1"]),
        (400, b"POST / HTTP/1.1", [b"Content-Length: 1", b"content-length: 2"]),
        (400, b"POST / HTTP/1.1", [b"Content-Length: 1, 1"]),
        (400, b"POST / HTTP/1.1", [b"Content-Length: +1"]),
        (400, b"POST / HTTP/1.1", [b"Content-Length: -1"]),
        (400, b"POST / HTTP/1.1", [b"Content-Length: 0x1"]),
        (400, b"POST / HTTP/1.1", [b"Content-Length: 1_0"]),
        (400, b"POST / HTTP/1.1", [b"Content-Length: 1 1"]),
        (400, b"POST / HTTP/1.1", [b"Content-Length:"]),
        (400, b"POST / HTTP/1.1", [b"Content-Length: 99999999999999999999"]),
        (400, b"POST / HTTP/1.1", [b"Content-Length : 1"]),
        (400, b"POST / HTTP/1.1", [b"Transfer-Encoding : chunked"]),
        (400, b"POST / HTTP/1.1", [b"Transfer-Encoding: xchunked"]),
        (400, b"POST / HTTP/1.1", [b"Transfer-Encoding: gzip, chunked"]),
        (400, b"POST / HTTP/1.1", [b"Transfer-Encoding: chunked, identity"]),
        (400, b"POST / HTTP/1.1", [b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"]),
        (400, b"POST / HTTP/1.1", [b"Transfer-Encoding:"]),
        (400, b"POST / HTTP/1.1", [b"Transfer-Encoding: \x0bchunked"]),
        (400, b"POST / HTTP/1.0", [b"Transfer-Encoding: chunked"]),
        (400, b"GET / HTTP/1.1", [b"A: b\r\n folded"]),
        (400, b"GET / HTTP/1.1", [b" A: b"]),
        (400, b"GET / HTTP/1.1", [b"A: b\nC: d"]),
        (400, b"GET / HTTP/1.1", [b"A: b\rC: d"]),
        (400, b"GET / HTTP/1.1", [b"A: b\0"]),
        (400, b"GET / HTTP/1.1", [b"A: \x01"]),
        (400, b"GET / HTTP/1.1", [b"A\0: b"]),
        (400, b"GET / HTTP/1.1", [b": b"]),
        (400, b"GET / HTTP/1.1", [b"A b: c"]),
        (400, b"GET / HTTP/1.1", [b"no colon"]),
        (400, b"GET / HTTP/1.1", [b"Host: a"]),
        (400, b"GET  / HTTP/1.1", []),
        (400, b"GET / x HTTP/1.1", []),
        (400, b"GET /\x7f HTTP/1.1", []),
        (400, b"GET /\xff HTTP/1.1", []),
        (400, b"GET /#x HTTP/1.1", []),
        (400, b"GET x HTTP/1.1", []),
        (400, b"GET * HTTP/1.1", []),
        (400, b"GET ftp://a/ HTTP/1.1", []),
        (400, b"GET http://u@a/ HTTP/1.1", []),
        (400, b"GET http://:81/ HTTP/1.1", []),
        (400, b"GET http://:/ HTTP/1.1", []),
        (400, b"GET http://://b/ HTTP/1.1", []),
        (400, b"GET / HTTP/1.1", [b"Upgrade: websocket", b"Connection: Upgrade"]),
        (417, b"GET / HTTP/1.1", [b"Expect: magic"]),
        (505, b"GET /", []),
        (505, b"GET / HTTP/2.0", []),
        (501, b"CONNECT a:1 HTTP/1.1", []),
        (501, b"PROPFIND / HTTP/1.1", []),
        (501, b"get / HTTP/1.1", []),
    ],
)
def test_a_request_that_could_be_read_in_two_ways_is_refused(status: int, first: bytes, lines: list[bytes]) -> None:
    with pytest.raises(HeadError) as refused:
        request(first, *lines)
    assert refused.value.status == status


@pytest.mark.parametrize("host", [b"a/b", b"a b", b"a,b", b"u@a", b"a:x", b"[::1", b"a?b"])
def test_a_host_that_is_no_host_is_refused(host: bytes) -> None:
    with pytest.raises(HeadError):
        request(b"GET / HTTP/1.1", b"Host: " + host, host=False)


@pytest.mark.parametrize("host", [b"", b"a", b"a.b:80", b"[::1]:8000", b"127.0.0.1"])
def test_a_lawful_host_passes(host: bytes) -> None:
    assert request(b"GET / HTTP/1.1", b"Host: " + host, host=False).method == b"GET"


def test_only_http_1_1_needs_a_host() -> None:
    assert request(b"GET / HTTP/1.0", host=False).headers == []
    with pytest.raises(HeadError):
        request(b"GET / HTTP/1.1", host=False)


def test_an_offer_of_h2c_is_ignored_as_java_makes_it_with_every_first_request() -> None:
    lines = [b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAEAAEAA", b"Content-Length: 3"]
    assert request(b"POST / HTTP/1.1", *lines).length == 3


@pytest.mark.parametrize(
    ("method", "lines", "framing", "length", "keeps"),
    [
        (b"GET", [b"HTTP/1.1 200 OK", b"Content-Length: 7"], Framing.LENGTH, 7, True),
        (b"GET", [b"HTTP/1.1 200", b"Content-Length: 0"], Framing.NONE, 0, True),
        (b"GET", [b"HTTP/1.1 200 OK", b"Transfer-Encoding: Chunked"], Framing.CHUNKED, 0, True),
        (b"GET", [b"HTTP/1.1 200 OK"], Framing.EOF, 0, False),
        (b"GET", [b"HTTP/1.0 200 OK", b"Content-Length: 7"], Framing.LENGTH, 7, False),
        (b"GET", [b"HTTP/1.0 200 OK", b"Content-Length: 7", b"Connection: keep-alive"], Framing.LENGTH, 7, True),
        (b"GET", [b"HTTP/1.1 200 OK", b"Content-Length: 7", b"Connection: close"], Framing.LENGTH, 7, False),
        (b"HEAD", [b"HTTP/1.1 200 OK", b"Content-Length: 7"], Framing.NONE, 0, True),
        (b"GET", [b"HTTP/1.1 204 No Content"], Framing.NONE, 0, True),
        (b"GET", [b"HTTP/1.1 304 Not Modified", b"Content-Length: 7"], Framing.NONE, 0, True),
    ],
)
def test_the_end_of_an_answer_is_found_as_rfc_9112_says(
    method: bytes, lines: list[bytes], framing: Framing, length: int, keeps: bool
) -> None:
    head = parse_response_head(b"\r\n".join(lines), method)
    assert (head.framing, head.length, head.keep_alive) == (framing, length, keeps)


@pytest.mark.parametrize(
    "lines",
    [
        [b"HTTP/1.1 200 OK", b"Content-Length: 7", b"Transfer-Encoding: chunked"],
        [b"HTTP/1.1 200 OK", b"Content-Length: 7", b"Content-Length: 7"],
        [b"HTTP/1.1 200 OK", b"Content-Length: 7x"],
        [b"HTTP/1.1 200 OK", b"Transfer-Encoding: gzip, chunked"],
        [b"HTTP/1.1 101 Switching", b"Upgrade: x", b"Connection: upgrade"],
        [b"HTTP/1.1 20 OK"],
        [b"ICY 200 OK"],
        [b"HTTP/1.1 200 OK", b"A: b\r\n folded"],
    ],
)
def test_a_doubtful_answer_is_refused(lines: list[bytes]) -> None:
    with pytest.raises(HeadError):
        parse_response_head(b"\r\n".join(lines), b"GET")


@pytest.mark.parametrize(
    ("wire", "rest", "lines"),
    [
        (b"\r\nGET", b"GET", 1),
        (b"\r\n\r\n\r", b"\r", 2),
        (b"\r\n", b"", 1),
        (b"\r\n" * 30_000 + b"G\r\n", b"G\r\n", 30_000),
    ],
)
def test_empty_lines_before_a_request_are_stripped_in_one_go(wire: bytes, rest: bytes, lines: int) -> None:
    assert strip_empty_lines(wire) == (rest, lines)


@pytest.mark.parametrize("wire", [b"\r\n\n", b"\r\n\rG", b"\r\n\r\r", b"\n\r"])
def test_half_an_empty_line_is_refused(wire: bytes) -> None:
    with pytest.raises(HeadError, match="CRLF"):
        strip_empty_lines(wire)
