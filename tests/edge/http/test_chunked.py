"""Chunk framing, apart from any socket."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbudget.edge.http.chunked import LAST_CHUNK, LINE_BYTES, TRAILER_BYTES, ChunkedDecoder, ChunkedError, chunk


def decoded(wire: bytes, cuts: list[int]) -> tuple[bytes, ChunkedDecoder]:
    decoder, body, start = ChunkedDecoder(), b"", 0
    for stop in [*sorted(cuts), len(wire)]:
        if not decoder.done and stop > start:
            body += decoder.feed(wire[start:stop])
            start = stop
    return body, decoder


@settings(deadline=None)  # the machine may be busy with other tests
@given(
    st.lists(st.binary(min_size=1, max_size=40)), st.lists(st.integers(0, 400)), st.sampled_from([b"", b";a=b", b" ;x"])
)
def test_a_body_is_the_same_however_it_is_chunked_and_cut(
    pieces: list[bytes], cuts: list[int], extension: bytes
) -> None:
    wire = b"".join(b"%X%s\r\n%s\r\n" % (len(piece), extension, piece) for piece in pieces) + LAST_CHUNK
    body, decoder = decoded(wire, [cut for cut in cuts if cut < len(wire)])
    assert body == b"".join(pieces)
    assert decoder.done
    assert decoder.excess == 0


@settings(deadline=None)  # the machine may be busy with other tests
@given(st.binary(max_size=30), st.integers(0, 8))
def test_what_follows_the_body_is_told_to_the_byte(excess: bytes, split: int) -> None:
    wire = chunk(b"abc") + b"0\r\nX-Trailer: 1\r\n\r\n"
    decoder = ChunkedDecoder()
    body = decoder.feed(wire[:split]) + decoder.feed(wire[split:] + excess)
    assert (body, decoder.done, decoder.excess) == (b"abc", True, len(excess))


@settings(deadline=None)  # the machine may be busy with other tests
@given(st.lists(st.binary(min_size=1, max_size=9), min_size=1), st.data())
def test_an_event_may_be_put_in_exactly_between_chunks(pieces: list[bytes], data: st.DataObject) -> None:
    chunks = [chunk(piece) for piece in pieces]
    ends, total = {0}, 0
    for part in chunks:
        total += len(part)
        ends.add(total)
    stop = data.draw(st.integers(0, total))
    decoder = ChunkedDecoder()
    decoder.feed(b"".join(chunks)[:stop])
    assert decoder.between_chunks is (stop in ends)


@pytest.mark.parametrize(
    "wire",
    [
        b"x\r\n",
        b"-1\r\n",
        b"+1\r\n",
        b"0x1\r\n",
        b"1_0\r\n",
        b" 1\r\n",
        b"\r\n",
        b"1\n",
        b"1;a\nb\r\n",
        b"1;a\rb\r\n",
        b"1;\0\r\n",
        b"1\r\nab\r\n",
        b"1\r\na\n",
        b"1\r\na\rx",
        b"1111111111111111\r\n",
        b"0\r\nbad trailer\r\n\r\n",
        b"0\r\nA: b\n\r\n",
        b"0\r\n\n",
        b"0\r\n folded\r\n\r\n",
        b"1;" + b"a" * LINE_BYTES + b"\r\n",
        b"1;" + b"a" * (LINE_BYTES + 1),
        b"0\r\n" + b"A: b\r\n" * (TRAILER_BYTES // 6 + 1),
        b"0\r\n" + b"A" * (TRAILER_BYTES + 1),
    ],
)
@pytest.mark.parametrize("bytewise", [False, True])
def test_framing_that_two_parsers_could_read_in_two_ways_is_refused(wire: bytes, bytewise: bool) -> None:
    decoder = ChunkedDecoder()

    def feed() -> None:
        for part in [wire[i : i + 1] for i in range(len(wire))] if bytewise else [wire]:
            decoder.feed(part)

    with pytest.raises(ChunkedError):
        feed()


def test_the_announced_bytes_of_a_chunk_are_known_before_they_come() -> None:
    decoder = ChunkedDecoder()
    assert decoder.feed(b"ffffff\r\nab") == b"ab"
    assert decoder.pending_bytes == 0xFFFFFF - 2


@pytest.mark.parametrize(
    "line", [b"Content-Length: 9", b"transfer-encoding : chunked", b"HOST: b", b"x: a\x7f", b"x: \x01"]
)
def test_trailers_hold_no_framing_and_no_control_bytes(line: bytes) -> None:
    with pytest.raises(ChunkedError, match="bad trailer"):
        ChunkedDecoder().feed(b"0\r\n" + line + b"\r\n\r\n")
