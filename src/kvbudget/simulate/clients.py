"""Decides what a client does: declares a length, waits, leaves, and comes back after a refusal."""

from enum import StrEnum

from kvbudget.gate.events import Arrived
from kvbudget.simulate.chance import Chance
from kvbudget.simulate.load import TraceRequest
from kvbudget.simulate.settings import ClientHabits

# The gate's edge lengthens what it tells by up to a quarter, so that refused clients do not come back all at once
# (edge/request/answers.py), and never tells more than two minutes.
_TOLD_JITTER = 0.25
_MAX_TOLD_NS = 120 * 10**9
# Without a told time: openai-python `_base_client.py` _calculate_retry_timeout.
_FIRST_PAUSE_NS = 500_000_000
_LONGEST_PAUSE_NS = 8_000_000_000
_PAUSE_JITTER = 0.25


class Ending(StrEnum):
    """How a request ended; every request ends with exactly one of these."""

    FINISHED = "finished"
    REFUSED = "refused"  # the last answer was a refusal, and the client did not come back
    TIMED_OUT = "timed_out"  # no first token came within the client's patience


class Client:
    """One request of the load with all its tries. `key` is the id of the present try: each is a new request to gate
    and engine."""

    __slots__ = (
        "at_told_time",
        "ending",
        "event",
        "first_sent_ns",
        "first_token_ns",
        "instance",
        "key",
        "late_gap",
        "number",
        "request",
        "tries",
        "waits_since_ns",
    )

    def __init__(self, number: int, request: TraceRequest) -> None:
        self.number = number
        self.request = request
        self.key = ""
        self.tries = 0
        self.first_sent_ns = request.arrival_ns
        self.first_token_ns: int | None = None
        self.late_gap = False  # a gap was over the SLO
        self.at_told_time = False  # this try comes at the time that the last refusal told
        self.instance = 0
        self.event: Arrived | None = None  # this try, as a gate hears of it
        self.waits_since_ns: int | None = None  # since when it has waited elsewhere, in this try
        self.ending: Ending | None = None

    def next_try(self) -> None:
        """Take a fresh key."""
        self.tries += 1
        self.waits_since_ns = None
        self.key = str(self.number) if self.tries == 1 else f"{self.number}.{self.tries}"

    def comes_back_in_ns(self, habits: ClientHabits, told_ns: int | None, now_ns: int, chance: Chance) -> int | None:
        """After a refusal: the pause until the next try; None if there will be none.

        `told_ns`: what Retry-After said, before the edge's jitter; None if it said nothing.
        """
        if self.tries > habits.retries:
            return None
        if told_ns is not None:
            pause_ns = min(_MAX_TOLD_NS, int(told_ns * (1 + _TOLD_JITTER * chance.random())))
        else:
            longest = min(_LONGEST_PAUSE_NS, _FIRST_PAUSE_NS << min(self.tries - 1, 10))
            pause_ns = int(longest * (1 - _PAUSE_JITTER * chance.random()))
        if habits.patience_ns is not None and now_ns + pause_ns >= self.first_sent_ns + habits.patience_ns:
            return None
        return pause_ns
