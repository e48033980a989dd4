"""Heads on the wire."""

import ast
from pathlib import Path

import pytest

import kvbudget.edge.http.messages
from kvbudget.edge.http.messages import (
    DATA_PLANE_CODES,
    end_to_end,
    has_no_body,
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


_SAYS_A_CODE = {"HeadError", "fail", "error_answer", "_break_off"}


def _codes_said(source: str) -> set[str]:
    """Every literal code in calls that answer with one, also where it comes by way of a variable or a choice."""
    tree = ast.parse(source)
    assigned: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            assigned.setdefault(node.targets[0].id, []).append(node.value)
    codes: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            # (status, code, message), and (message, code) for what ends a stream.
            said = node.args[1] if name in _SAYS_A_CODE and len(node.args) > 1 else None
            values = assigned.get(said.id, []) if isinstance(said, ast.Name) else [said]
            for value in values:
                for each in (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,):
                    if isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value.isidentifier():
                        codes.add(each.value)
    return codes


def test_the_table_of_codes_holds_exactly_what_the_data_plane_says() -> None:
    said: set[str] = set()
    for path in Path(kvbudget.edge.http.messages.__file__).parent.glob("*.py"):
        said |= _codes_said(path.read_text())
    assert {"duplicate_header", "bad_request", "upstream_failed", "request_cancelled", "body_too_large"} <= said
    assert said == set(DATA_PLANE_CODES)


def test_the_status_of_a_code_is_the_one_in_the_table() -> None:
    for path in Path(kvbudget.edge.http.messages.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and len(node.args) == 3:
                status, code = node.args[:2]
                if (
                    isinstance(status, ast.Constant)
                    and isinstance(code, ast.Constant)
                    and isinstance(status.value, int)
                ):
                    assert DATA_PLANE_CODES[code.value] == status.value, path.name  # type: ignore[index]
