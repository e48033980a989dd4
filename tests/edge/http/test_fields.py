"""The lines of a head, lawful or not."""

import pytest

from kvbudget.edge.http.fields import FieldsError, read_lines


def test_names_are_lower_cased_and_values_bare() -> None:
    first, headers, by_name = read_lines(b"first\tline \r\nX-A:  b \t\r\nx-a:c:d\r\nEmpty:\r\nHigh: \xff\x85")
    assert first == b"first\tline "
    assert headers == [(b"x-a", b"b"), (b"x-a", b"c:d"), (b"empty", b""), (b"high", b"\xff\x85")]
    assert by_name == {b"x-a": b"c:d", b"empty": b"", b"high": b"\xff\x85"}


def test_a_first_line_may_stand_alone() -> None:
    assert read_lines(b"first") == (b"first", [], {})


@pytest.mark.parametrize("byte", [*range(9), *range(10, 0x20), 0x7F])
@pytest.mark.parametrize("place", [b"fi%sst\r\nA: b", b"first\r\nA: b%sc", b"first\r\nA%s: b", b"first\r\nA: b%s"])
def test_no_control_byte_passes_anywhere(place: bytes, byte: int) -> None:
    with pytest.raises(FieldsError):
        read_lines(place % bytes([byte]))


@pytest.mark.parametrize("name", [b"", b" A", b"A ", b"A\t", b"A B", b"A(", b"\xe9", b"A,B", b'"A"'])
def test_a_name_that_is_no_token_is_refused_every_time(name: bytes) -> None:
    for _ in range(2):  # what was refused must not be remembered as seen
        with pytest.raises(FieldsError):
            read_lines(b"first\r\n%s: b" % name)


@pytest.mark.parametrize("lines", [b"A: b\r\n c", b"A: b\r\n\tc: d", b"no colon", b"A: b\r\n\r\nC: d", b"A: b\n\rC: d"])
def test_lines_that_are_no_headers_are_refused(lines: bytes) -> None:
    with pytest.raises(FieldsError):
        read_lines(b"first\r\n" + lines)


@pytest.mark.parametrize("name", [b"Host", b"content-length", b"Transfer-Encoding", b"EXPECT", b"upgrade"])
def test_what_must_stand_once_does(name: bytes) -> None:
    with pytest.raises(FieldsError) as refused:
        read_lines(b"first\r\n%s: a\r\nB: c\r\n%s: a" % (name, name.lower()))
    assert refused.value.duplicate


def test_names_without_end_are_read_but_not_all_remembered() -> None:
    for number in range(3000):
        assert read_lines(b"first\r\nX-%d: a" % number)[1] == [(b"x-%d" % number, b"a")]
    long = b"X" * 5000
    assert read_lines(b"first\r\n%s: a" % long)[1] == [(long.lower(), b"a")]
