"""Decides what every answer of ours tells beside its words: how much room there is, and that nothing is promised."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from kvbudget.edge.http.exchange import ErrorForm
from kvbudget.edge.http.messages import Headers
from kvbudget.edge.surfaces.dialects import ANTHROPIC
from kvbudget.gate.fleet.fleet import Fleet
from kvbudget.gate.gate import Gate

_DAY_S: Final = 86_400.0


Room = tuple[int, int]
"""A pool in tokens, and what is not promised of it."""


def room_of(gate: Gate) -> Room:
    """Of one gate's pool, by all the gates that share it."""
    ledger = gate.ledger
    block_size = ledger.layout.groups[0].block_size
    remaining = ledger.pool_blocks - ledger.peak_sum_blocks - gate.promises.elsewhere_blocks
    return ledger.pool_blocks * block_size, remaining * block_size if remaining > 0 else 0


def most_room(fleet: Fleet) -> Room:
    """Of the instance with the most: who is refused was placed nowhere."""
    gates = [member.gate for member in fleet.members if member.in_service] or [fleet.home.gate]
    return max([room_of(gate) for gate in gates], key=lambda room: room[1])


def time_of_day(seconds: float) -> bytes:
    """So many seconds from now, as Anthropic's API tells a reset (RFC 3339); at most a day."""
    return (datetime.now(UTC) + timedelta(seconds=min(seconds, _DAY_S))).strftime("%Y-%m-%dT%H:%M:%SZ").encode()


class Standing:
    """How the pool stands, as headers of an answer that promises nothing. `room`: asked for with each of them."""

    def __init__(self, room: Callable[[], Room]) -> None:
        self._room = room

    def headers(self, errors: ErrorForm | None, *, waited_ns: int = 0, reset_s: float = 0.0) -> Headers:
        """`waited_ns`: in the queue. `reset_s`: until room is expected; 0 where waiting does not help."""
        limit, remaining = self._room()
        told = [
            (b"x-kvbudget-reserved-blocks", b"0"),
            (b"x-kvbudget-queue-ms", b"%d" % (waited_ns // 1_000_000)),
            (b"x-ratelimit-limit-tokens", b"%d" % limit),
            (b"x-ratelimit-remaining-tokens", b"%d" % remaining),
            (b"x-ratelimit-reset-tokens", b"%.3fs" % reset_s),
        ]
        if errors is ANTHROPIC:
            told += [
                (b"anthropic-ratelimit-tokens-limit", b"%d" % limit),
                (b"anthropic-ratelimit-tokens-remaining", b"%d" % remaining),
                (b"anthropic-ratelimit-tokens-reset", time_of_day(reset_s)),
            ]
        return told
