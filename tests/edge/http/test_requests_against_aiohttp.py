"""Connections read by us and by aiohttp: one meaning, or one of the two refuses for a reason that is listed."""

import random

from aiohttp_twin import ITS_OWN, LENIENT, connection_by_aiohttp, difference
from h11_twin import connection_by_us, made_connection

SEED = 20261130
INPUTS = 5000


def test_a_connection_means_the_same_to_us_and_to_aiohttp_however_its_bytes_are_cut() -> None:
    chance = random.Random(SEED)
    whole = refused = 0
    for number in range(INPUTS):
        wire = made_connection(chance)
        cuts = sorted(chance.randrange(len(wire)) for _ in range(chance.choice((0, 1, 3))))
        told = difference(wire, cuts)
        assert not told, f"{told}\nseed {SEED}, input {number}, cuts {cuts}: {wire!r}"
        read = connection_by_aiohttp(wire)
        whole += len(read.requests)
        refused += read.refused == "refused"
    # The inputs must reach both, or the comparison says nothing.
    assert (whole > INPUTS / 2, refused > INPUTS / 20) == (True, True), (whole, refused)


def test_what_is_listed_as_aiohttps_own_is_still_so() -> None:
    chunked = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    head = b"POST /p HTTP/1.1\r\nhost: a\r\n\r\n"
    refuses = [
        chunked + b"5 \r\nhello\r\n0\r\n\r\n",
        chunked + b"5;a;b c\r\nhello\r\n0\r\n\r\n",
        chunked.replace(b"chunked", b"chunked\t") + b"0\r\n\r\n",
    ]
    reads = [
        b"\n" + head,
        head.replace(b"/p ", b"/p  "),
        chunked.replace(b"chunked", b",chunked") + b"0\r\n\r\n",
        head.replace(b"host: a", b"host: a\r\nTransfer-Encoding: Chud\r\nConnection: Upgrade\r\nUpgrade: h2c"),
        b"POST /p\r\nhost: a\r\n\r\n",
    ]
    for wires, rules, theirs in ((refuses, ITS_OWN, 0), (reads, LENIENT, 1)):
        for wire, (why, holds) in zip(wires, rules, strict=True):
            assert holds(wire), why
            assert len(connection_by_aiohttp(wire).requests) == theirs, why
            assert len(connection_by_us(wire, []).requests) == 1 - theirs, why


def test_a_trailer_does_not_become_a_header_of_the_next_request() -> None:
    wire = (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx-kvbudget-tenant: t\r\n\r\n"
        b"POST / HTTP/1.1\r\nhost: a\r\n\r\n"
    )
    assert [headers for _, _, _, headers, _ in connection_by_us(wire, []).requests][1] == [(b"host", b"a")]
