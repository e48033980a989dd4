"""Decides how much of each account every gate may promise: never more in all than there is.

A branch (one life of one gate) has a slice of each account until its lease runs out; only its own calls renew that.

1. What a branch keeps is its slice from then on; the rest is free for others. A bank that lost its memory takes a
   branch at its word, as far as there is room.
2. A branch that needs more asks. It gets all of that at once or nothing, if it is free beside what those before it ask
   for: those with a more urgent request waiting, those whose request waits PATIENCE_MS longer, and those whose request
   waits longer and who have asked in vain for PATIENCE_MS beside room: all that they lack was promised to nobody, and
   went again and again to some who made no use of it. Of others whoever fits goes first: what comes together for a
   large one would lie idle meanwhile. Who asks and is not heard of for ASK_MS does so no more.
   Gates give out anew what ends with them, which is faster. But who asks and comes before all at another gate, and has
   waited PATIENCE_MS, is not to be passed by that for ever: that gate yields, and what ends there is given back. To a
   more urgent one it yields after URGENT_MS.
3. While nobody lacks anything, a branch gets some of what it wants beyond: a part of what is free.
4. A branch whose lease ran out may be gone, or only out of touch, and its requests run on. Its slice is nothing from
   then on, but it is not granted to others before a look at the engine, made since, tells that nothing of it is held;
   where the engine tells nothing, for one more lease, and at most for MISSING_MS. If it comes back, it is its own
   again.
5. Blocks of a beginning that prompts at several gates share (an account of its own, PREFIX) are charged to the pool
   once, whoever keeps them, until the last who does gives them up or the fence of 4 is down for him. A gate takes them
   out of what it gives up in the same call; beyond that it gets them only where others keep them or blocks are free.
6. A bank that has lost its memory grants nothing but by rule 1, until all leases of before are over.

The sum of all slices that the bank has granted is at least what branches go by, whatever is lost, late or repeated:
a branch lowers its slice before it says so, and raises it only by the answer to its last call (`gate.bank.branch`).
The clock is the bank's own; that of a branch need only go as fast, give or take DRIFT.

This is the reference. `edge.bank` does the same inside of Valkey or Redis, and one suite of tests goes over both.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from kvbudget.gate.bank.terms import BLOCKS, PREFIX, SEQUENCES, Answer, Call, Line, Reading, Slice

ASK_MS: Final = 1000
PATIENCE_MS: Final = 1500
URGENT_MS: Final = 500
MISSING_MS: Final = 600_000  # longer than most answers take
_NEVER_ASKED: Final = (0, 0, "")


@dataclass(slots=True)
class _Held:
    """One account of one branch."""

    limit: int
    granted: int
    needs: int
    promised: int


@dataclass(slots=True)
class _Branch:
    """One branch, by its last call."""

    number: int
    expires_ms: int
    held: dict[str, _Held]
    # What it asked for last: (priority, since when that waits, name), and until when it does
    rank: tuple[int, int, str] = _NEVER_ASKED
    ask_until_ms: int = 0
    room_since_ms: int | None = None  # since when what it asks for is promised to nobody

    def asks(self, now_ms: int) -> bool:
        return now_ms < self.ask_until_ms

    def is_before(self, rank: tuple[int, int, str], now_ms: int) -> bool:
        """Whether it, which asks, must not be passed by one of this rank."""
        (priority, since_ms, _), (other_priority, other_since_ms, _) = self.rank, rank
        if priority != other_priority:
            return priority < other_priority
        in_vain = self.room_since_ms is not None and now_ms - self.room_since_ms > PATIENCE_MS
        return since_ms + (0 if in_vain else PATIENCE_MS) < other_since_ms


@dataclass(slots=True)
class _Missing:
    """A branch whose lease ran out, and what it may have promised out of its slice."""

    looked_ms: int  # when the engine was last looked at; at first, when the lease ran out
    until_ms: int  # unless a look tells that there is something
    at_last_ms: int  # whatever is told
    lease_ms: int
    kept: dict[str, int]


@dataclass(slots=True)
class Bank:
    """All accounts of one pool. `settling_until_ms`: after a start without memory, until all old leases are over."""

    settling_until_ms: int = 0
    _branches: dict[str, _Branch] = field(default_factory=dict)
    _missing: dict[str, _Missing] = field(default_factory=dict)

    def call(self, call: Call, now_ms: int) -> tuple[Answer | None, list[str]]:
        """Take in a call; returns the answer, None to one that is out of date, and the branches that should call soon:
        they can have what they asked for, or have what another one lacks."""
        self._expire(now_ms, call.lease_ms)
        branch = self._branches.get(call.branch)
        if branch is not None and call.number <= branch.number:
            return None, []
        known = branch is not None
        if call.leaves:
            self._branches.pop(call.branch, None)
            self._missing.pop(call.branch, None)
            return Answer(call.number, known, False, False, len(self._branches), {}), self._servable(now_ms)
        if branch is None:
            branch = self._branches[call.branch] = self._come_back(call)
        branch.number, branch.expires_ms = call.number, now_ms + call.lease_ms
        self._keep(branch, call.lines)
        self._find(call.reading, now_ms)
        settling = now_ms < self.settling_until_ms
        asked_before = branch.asks(now_ms)
        lacks = self._ask(call, branch, now_ms, settling=settling)
        first = self._first_of_others(call.branch, now_ms)
        short = first is not None or any(self._free(line.account) < 0 for line in call.lines)
        if not (lacks or short or settling):
            self._lend(branch, call.lines)
        self._note_room(now_ms)
        woken = self._servable(now_ms)
        if lacks and not asked_before:
            woken += [name for name in self._idle(call.branch, lacks) if name not in woken]
        yields_to = None if first is None else self._yields_to(call, first, now_ms)
        return self._answer(call, yields_to, known=known, short=short, settling=settling), woken

    def granted(self, account: str) -> int:
        """What all branches have together."""
        return sum([one.held[account].granted for one in self._branches.values() if account in one.held])

    def slice_of(self, branch: str, account: str) -> int:
        """What one branch has by the bank's reckoning."""
        one = self._branches.get(branch)
        return 0 if one is None or account not in one.held else one.held[account].granted

    # Who is there

    def _expire(self, now_ms: int, lease_ms: int) -> None:
        self._missing = {name: one for name, one in self._missing.items() if now_ms < min(one.until_ms, one.at_last_ms)}
        for name, one in list(self._branches.items()):
            if now_ms < one.expires_ms:
                continue
            del self._branches[name]
            kept = {account: held.granted for account, held in one.held.items() if held.granted > 0}
            if kept:
                self._missing[name] = _Missing(now_ms, now_ms + lease_ms, now_ms + MISSING_MS, lease_ms, kept)

    def _come_back(self, call: Call) -> _Branch:
        """One that is not known: what it had when its lease ran out, as far as that was kept, is its own."""
        missing = self._missing.pop(call.branch, None)
        kept = {} if missing is None else missing.kept
        return _Branch(call.number, 0, {account: _Held(0, amount, 0, 0) for account, amount in kept.items()})

    def _find(self, reading: Reading | None, now_ms: int) -> None:
        """Whether the engine may still have something of those that are missing, by a look that was made since: beside
        what all others have promised, in blocks or in sequences. However little that is, it may yet grow to all."""
        if reading is None:
            return
        looked_ms = now_ms - reading.age_ms
        promised = self._promised(BLOCKS) + self._in_common()
        there = reading.held > promised or reading.sequences > self._promised(SEQUENCES)
        for name, one in list(self._missing.items()):
            if one.looked_ms >= looked_ms:
                continue
            if there:
                one.looked_ms, one.until_ms = looked_ms, now_ms + one.lease_ms
            else:
                del self._missing[name]

    def _promised(self, account: str) -> int:
        return sum([one.held[account].promised for one in self._branches.values() if account in one.held])

    def _free(self, account: str) -> int:
        """What is not granted; below 0 after there was more. Limits differ while a change is not known to all: the
        least holds; one who knows of none (0) says nothing of it."""
        if account.startswith(PREFIX):
            account = BLOCKS
        return self._least(account) - self.granted(account) - self._kept_for_missing(account) - self._charged(account)

    def _charged(self, account: str) -> int:
        """What is charged to an account beside slices of it: of blocks, all that is kept in common."""
        return self._in_common(self._missing.values()) if account == BLOCKS else 0

    def _charged_for(self, branch: _Branch) -> int:
        """Blocks of a branch's slice, and of all that is kept in common."""
        return self._charged(BLOCKS) + (branch.held[BLOCKS].granted if BLOCKS in branch.held else 0)

    def _in_common(self, missing: Iterable[_Missing] = ()) -> int:
        """Blocks of beginnings that living ones keep, or those that are `missing`: each once."""
        most: dict[str, int] = {}
        for one in self._branches.values():
            for account, held in one.held.items():
                if account.startswith(PREFIX):
                    most[account] = max(most.get(account, 0), held.granted)
        for gone in missing:
            for account, amount in gone.kept.items():
                if account.startswith(PREFIX):
                    most[account] = max(most.get(account, 0), amount)
        return sum(most.values())

    def _least(self, account: str) -> int:
        limits = [one.held[account].limit for one in self._branches.values() if account in one.held]
        return min([limit for limit in limits if limit > 0], default=0)

    def _kept_for_missing(self, account: str) -> int:
        return sum([one.kept.get(account, 0) for one in self._missing.values()])

    # What one keeps, asks for and is lent

    def _keep(self, branch: _Branch, lines: tuple[Line, ...]) -> None:
        before, had_blocks = branch.held, self._charged_for(branch)
        had = {account: held.granted for account, held in before.items()}
        branch.held = {
            line.account: _Held(line.limit, min(line.keeps, had.get(line.account, 0)), line.needs, line.promised)
            for line in lines
        }
        given_up = had_blocks - self._charged_for(branch)
        # Beyond what it had: if this memory is older than its own, into a common beginning, or out of one.
        for line in lines:
            held, free = branch.held[line.account], max(0, self._free(line.account))
            if not line.account.startswith(PREFIX):
                more = min(line.keeps - held.granted, free)
                held.granted += more
                if line.account == BLOCKS:  # what it gave up has gone into that first
                    given_up -= more
            elif held.granted < line.keeps:
                kept, charged = held.granted, self._charged_for(branch)
                held.granted = line.keeps
                more = self._charged_for(branch) - charged
                if more > max(free, given_up):  # a part would be of no use
                    held.granted = kept
                else:
                    given_up -= more

    def _ask(self, call: Call, branch: _Branch, now_ms: int, *, settling: bool) -> list[str]:
        """Grants what it needs if that may be; returns the accounts in which it lacks something after all."""
        lacks = [line for line in call.lines if line.needs > branch.held[line.account].granted]
        rank = (call.priority, now_ms - call.waited_ms, call.branch)
        if lacks and not settling and all(self._is_free_for(line, branch, rank, now_ms) for line in lacks):
            for line in lacks:
                branch.held[line.account].granted = line.needs
            lacks = []
        branch.rank = rank
        branch.ask_until_ms = now_ms + ASK_MS if lacks else 0
        return [line.account for line in lacks]

    def _is_free_for(self, line: Line, branch: _Branch, rank: tuple[int, int, str], now_ms: int) -> bool:
        missing = line.needs - branch.held[line.account].granted
        return missing <= self._free(line.account) - self._asked_before(line.account, rank, now_ms)

    def _asked_before(self, account: str, rank: tuple[int, int, str], now_ms: int) -> int:
        """What those who must not be passed lack. Not oneself: one's own last question may have been of higher rank, if
        only because a call took longer this time."""
        return sum(
            [
                max(0, other.held[account].needs - other.held[account].granted)
                for name, other in self._branches.items()
                if name != rank[2] and other.asks(now_ms) and other.is_before(rank, now_ms)
                if account in other.held
            ]
        )

    def _first_of_others(self, name: str, now_ms: int) -> _Branch | None:
        others = [one for other, one in self._branches.items() if other != name and one.asks(now_ms)]
        return min(others, key=_rank_of, default=None)

    def _yields_to(self, call: Call, first: _Branch, now_ms: int) -> int | None:
        """The class of the first of others who ask, if it has waited so long that the caller has to yield."""
        priority, since_ms, _ = first.rank
        asks = any(line.needs > line.promised for line in call.lines)
        ours = (call.priority, now_ms - call.waited_ms) if asks else (priority, now_ms)
        late = now_ms - since_ms > (URGENT_MS if priority < ours[0] else PATIENCE_MS)
        return priority if late and first.is_before((*ours, ""), now_ms) else None

    def _note_room(self, now_ms: int) -> None:
        """Since when there is room for each who asks, beside what all have promised."""
        for branch in self._branches.values():
            if not branch.asks(now_ms) or not all(self._has_room(branch, account) for account in branch.held):
                branch.room_since_ms = None
            elif branch.room_since_ms is None:
                branch.room_since_ms = now_ms

    def _has_room(self, branch: _Branch, account: str) -> bool:
        held = branch.held[account]
        beside = self._promised(account) - held.promised + self._kept_for_missing(account) + self._charged(account)
        return held.needs <= held.granted or held.needs <= self._least(account) - beside

    def _lend(self, branch: _Branch, lines: tuple[Line, ...]) -> None:
        for line in lines:
            held = branch.held[line.account]
            part = max(0, self._free(line.account)) // (1 + len(self._branches))
            held.granted += max(0, min(line.wants - held.granted, part))

    # Who should call

    def _servable(self, now_ms: int) -> list[str]:
        """Those who asked and would get it now, one after the other, the first first."""
        ranks = [one.rank for one in self._branches.values() if one.asks(now_ms)]
        if now_ms < self.settling_until_ms:
            return []
        servable: list[str] = []
        taken: dict[str, int] = {}
        for rank in sorted(ranks):
            name = rank[2]
            lacking = {
                account: held.needs - held.granted
                for account, held in self._branches[name].held.items()
                if held.needs > held.granted
            }
            before = {account: self._asked_before(account, rank, now_ms) for account in lacking}
            if all(
                missing <= self._free(account) - before[account] - taken.get(account, 0)
                for account, missing in lacking.items()
            ):
                servable.append(name)
                for account, missing in lacking.items():
                    taken[account] = taken.get(account, 0) + missing
        return servable

    def _idle(self, asking: str, accounts: list[str]) -> list[str]:
        """Those who have more than they said that they need, of what one lacks."""
        return [
            name
            for name, one in self._branches.items()
            if name != asking
            and any(account in one.held and one.held[account].granted > one.held[account].needs for account in accounts)
        ]

    def _answer(self, call: Call, yields_to: int | None, *, known: bool, short: bool, settling: bool) -> Answer:
        slices: dict[str, Slice] = {}
        for line in call.lines:
            elsewhere = self._promised(line.account) - line.promised + self._kept_for_missing(line.account)
            elsewhere += self._charged(line.account)
            slices[line.account] = Slice(self.slice_of(call.branch, line.account), elsewhere)
        missing = bool(self._missing)
        return Answer(call.number, known, short, settling, len(self._branches), slices, yields_to, missing)


def _rank_of(branch: _Branch) -> tuple[int, int, str]:
    return branch.rank
