"""Requests read by us and by h11: one meaning, or both refuse, or we are stricter for a reason that is listed."""

import random

from h11_twin import STRICTER, difference, made, made_connection, read_by_h11, read_by_us, same, stricter_reasons
from kvbudget.edge.http.heads import HeadError

SEED = 20261129
INPUTS = 6000


def test_a_request_head_means_the_same_to_us_and_to_h11_or_is_refused_for_a_listed_reason() -> None:
    chance = random.Random(SEED)
    both, neither, stricter = 0, 0, dict.fromkeys((code for _, code, _ in STRICTER), 0)
    for number in range(INPUTS):
        wire = made(chance)
        stop = wire.find(b"\r\n\r\n")
        if stop < 0 or wire.startswith(b"\r\n"):
            continue  # not a head yet, or not only one; the connection decides before it parses
        raw = wire[:stop]
        told = f"seed {SEED}, input {number}: {raw!r}"
        theirs = read_by_h11(raw)
        ours = read_by_us(raw)
        if isinstance(ours, HeadError):
            if theirs is None:
                neither += 1
                continue
            assert stricter_reasons(ours.code, raw), f"{ours.code} {told}"
            stricter[ours.code] += 1
            continue
        assert theirs is not None, f"h11 refuses, we do not: {told}"
        assert same(ours, theirs), f"{ours}\n{theirs}\n{told}"
        both += 1
    # The inputs must reach every branch, or the comparison says nothing.
    assert both > INPUTS / 20, both
    assert neither > INPUTS / 20, neither
    assert all(count for code, count in stricter.items() if code != "host_required"), stricter


def test_a_connection_means_the_same_to_us_and_to_h11_however_its_bytes_are_cut() -> None:
    chance = random.Random(SEED)
    for number in range(2000):
        wire = made_connection(chance)
        cuts = sorted(chance.randrange(len(wire)) for _ in range(chance.choice((0, 1, 3))))
        told = difference(wire, cuts)
        assert not told, f"{told}\nseed {SEED}, input {number}, cuts {cuts}: {wire!r}"
