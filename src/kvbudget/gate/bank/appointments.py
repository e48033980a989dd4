"""Decides what gates that share a pool tell each other of clients whom they have told to come back.

A client comes back to any of the gates. Each says, again and again and in full, who is to come soon by what it told,
and who came to it of those whom others had told: so anything may be lost or come twice. Whoever comes is known at each
gate then, and who told it learns that it came. What is wrong with it harms no promise.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from kvbudget.gate.refusing.return_pace import PROBES
from kvbudget.gate.refusing.returns import Booking, Returns, name_of

AHEAD_NS: Final = 10 * 10**9  # so long before it is due one is told of: several words from now
SOON_NS: Final = AHEAD_NS + 2 * 10**9  # clocks differ: nobody is believed who tells of one who is due later
LONGEST_NS: Final = 150 * 10**9  # from telling to coming: the longest time that is told, and a quarter
MOST_BLOCKS: Final = 1 << 31  # of one: sums of as many as there may be stay exact
MOST_DUE: Final = 192  # in one word, those that come next
MOST_CAME: Final = 192
MOST_LIVES: Final = 128  # of whom it is known whom they have told; more than a board keeps


class Due(NamedTuple):
    """One who was told. `number`: of that, at its gate. `name`: `returns.name_of` what it asks for. `percent`: the
    chance with which it is expected. Blocks: that it is expected to hold, and at its peak."""

    number: int
    name: str
    told_ns: int
    due_ns: int
    percent: int
    blocks: int
    peak_blocks: int


class Came(NamedTuple):
    """One who came to another gate than that which had told it. `asked`: how often the same was asked for before."""

    life: str
    number: int
    asked: int


class Word(NamedTuple):
    """What one gate has to say of one pool; times are by the clock of who has it."""

    due: tuple[Due, ...] = ()
    came: tuple[Came, ...] = ()


class Appointments:
    """What one gate says and has heard."""

    def __init__(self, returns: Returns, life: str) -> None:
        """`life`: by what others call this gate; never used again."""
        self._returns = returns
        self._life = life
        self._known: dict[str, dict[int, Booking]] = {}  # by life of who told it, and number

    def word(self, now_ns: int) -> Word:
        """What there is to say now."""
        due = [
            Due(one.serial, name_of(one.key), one.told_ns, one.due_ns, _percent(one), one.blocks, one.peak_blocks)
            for one in self._returns.told_here(MOST_DUE, now_ns)
            if one.due_ns < now_ns + AHEAD_NS
        ]
        came: list[Came] = []
        for life, known in list(self._known.items()):
            for number, booking in list(known.items()):
                if booking.over and booking.until_ns < now_ns:
                    del known[number]  # by now it has passed where it was told as well
                elif booking.came and len(came) < MOST_CAME:
                    came.append(Came(life, number, booking.asked))
            if not known:
                del self._known[life]
        return Word(tuple(due), tuple(came))

    def hear(self, life: str, word: Word, now_ns: int) -> None:
        """Another gate has said so."""
        known = self._known.get(life, {})
        told = {due.number for due in word.due}
        self._drop([booking for number, booking in known.items() if number not in told], now_ns)
        for due in word.due:
            if not _is_sound(due, now_ns):
                continue
            if due.number in known:
                self._returns.expect(known[due.number], due.percent / 100, now_ns)
            else:
                booking = self._returns.told_elsewhere(
                    due.name, due.told_ns, due.due_ns, due.percent / 100, due.blocks, due.peak_blocks, now_ns
                )
                if booking is not None:
                    known[due.number] = booking
        if known and (life in self._known or len(self._known) < MOST_LIVES):
            self._known[life] = known
        for came in word.came:
            if came.life == self._life:
                self._returns.came_elsewhere(came.number, came.asked, now_ns)
            else:
                booking = self._known.get(came.life, {}).get(came.number)
                self._drop([] if booking is None else [booking], now_ns)

    def _drop(self, bookings: Iterable[Booking], now_ns: int) -> None:
        for booking in bookings:
            self._returns.drop(booking, now_ns)


def _is_sound(due: Due, now_ns: int) -> bool:
    """Whether a gate with a right clock may have told so. What is due much later could not be dropped for as long."""
    is_near = due.due_ns <= now_ns + SOON_NS and due.due_ns - due.told_ns <= LONGEST_NS
    return is_near and due.blocks <= MOST_BLOCKS and due.peak_blocks <= MOST_BLOCKS


def _percent(booking: Booking) -> int:
    """Nobody, before it is known that some do: all gates keep room for them, and most clients never come back."""
    share = booking.pace.share
    return round(100 * share.expected) if share.known >= PROBES else 0
