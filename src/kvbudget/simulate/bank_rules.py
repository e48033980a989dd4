"""Decides whether several gates and their bank keep the rules, after each event of a world (`bank_world`).

1. What all gates may promise together, each by its own clock, is never more than the pool; what several keep in common
   is part of that once.
2. The bank knows of all of it: what it reckons to be a branch's is never less than that branch goes by, but while it
   settles after its memory was lost.
3. What a gate has promised is within its slice, unless it was not heard of for a lease, or the bank lost its memory;
   then it promises nothing more until it is within it again.
4. A lease ends when its branch is not heard of: nobody else's call renews it.
5. Nothing is taken from a branch but by its own call, or when its lease ends; and a call never takes what it keeps.
6. When the bad times are over: the first of all that wait goes in when there is room, and does not wait longer than
   two requests may last; in the end everybody is served and everything is free but for small reserves.
7. By `worst-case` all that live never come to hold more than the pool, however they share: as long as no gate was out
   of touch for a lease, and the bank kept its memory.
"""

from typing import TYPE_CHECKING, Any, Final

from kvbudget.gate.bank.bank import PATIENCE_MS
from kvbudget.gate.bank.terms import BLOCKS, SEQUENCES, Answer, Call
from kvbudget.gate.policies import Policy
from kvbudget.gate.tenants.kept import SPREAD
from kvbudget.units import Blocks

if TYPE_CHECKING:
    from kvbudget.simulate.bank_world import Life, World

_ACCOUNTS: Final = (BLOCKS, SEQUENCES)
_MS: Final = 10**6
# An idle slice is called for at once, and again when a lease is half over; until it has waited PATIENCE_MS longer than
# they, others may go before it.
_ROOM_SEEN_NS: Final = PATIENCE_MS * _MS + 1_000_000_000
_LOOK_NS: Final = 20 * _MS


class RuleBrokenError(Exception):
    """Which rule, when, and by what."""


class Rules:
    """What is remembered of one world to judge it."""

    def __init__(self, world: Any) -> None:
        self._world: World = world
        # (number, until when in ms) of the last call that the bank heeds, by branch
        self._leases: dict[str, tuple[int, int]] = {}
        self._before: dict[str, int] = {}
        self._excused: set[str] = set()  # lives that may have promised beyond their slices
        self._room_since_ns: int | None = None
        self._first = ("", 0)
        self._next_look_ns = 0

    def broken(self, what: str) -> None:
        """Raises RuleBrokenError."""
        raise RuleBrokenError(f"at {self._world.now_ns / 1e9:.6f} s, step {self._world.steps}: {what}")

    # After every event

    def look(self) -> None:
        """Rules 1 to 3, and from time to time 6 and 7."""
        world = self._world
        most = {BLOCKS: world.weather.pool_blocks, SEQUENCES: world.weather.max_num_seqs}
        sums = {BLOCKS: 0, SEQUENCES: 0}
        together: dict[str, int] = {}  # what is kept in common, each name once
        settles = world.now_ns // _MS < world.bank.settling_until_ms
        for life in world.lives:
            if life.dead:
                continue
            own_ns = life.own_ns(world.now_ns)
            branch = life.replica.branch
            if branch.is_lost(own_ns):
                self._excused.add(life.name)
                commons = {}
            else:
                commons = _commons_of(life)
                together |= commons
            allowed = self._allowed(life)
            for account in _ACCOUNTS:
                by_branch = 0 if branch.is_lost(own_ns) else branch.slices.get(account, 0)
                goes_by = max(by_branch, allowed[account])
                sums[account] += goes_by
                known = 0 if self._is_over(life.name) else world.bank.slice_of(life.name, account)
                if account == BLOCKS:  # the bank may not have heard yet what was taken out of it, but then has it there
                    unheard = [one for name, one in commons.items() if world.bank.slice_of(life.name, name) < one]
                    goes_by += sum(unheard)
                if not settles and goes_by > known:
                    self.broken(f"rule 2: {life.name} goes by {goes_by} {account}, the bank reckons with {known}")
            if world.weather.policy is Policy.WORST_CASE or world.steps % 16 == 0:
                self._look_at_promises(life, allowed)
        sums[BLOCKS] += sum(together.values())
        for account in _ACCOUNTS:
            if sums[account] > most[account]:
                self.broken(f"rule 1: {sums[account]} {account} may be promised, of {most[account]}")
        if world.now_ns >= self._next_look_ns:
            self._next_look_ns = world.now_ns + _LOOK_NS
            self._look_at_the_first()
            self._look_at_the_engine()

    def let_in(self, life: "Life") -> None:
        """A gate has let somebody in."""
        self._look_at_promises(life, self._allowed(life), let_in=True)

    def _allowed(self, life: "Life") -> dict[str, int]:
        return dict(zip(_ACCOUNTS, life.gate.slice_at(life.own_ns(self._world.now_ns)), strict=True))

    def _look_at_promises(self, life: "Life", allowed: dict[str, int], *, let_in: bool = False) -> None:
        promised = {BLOCKS: life.gate.promised_blocks(), SEQUENCES: life.gate.ledger.sequences}
        for account in _ACCOUNTS:
            over = promised[account] - allowed[account]
            if account == BLOCKS and self._world.weather.policy is Policy.LEARNED:
                continue  # it takes a risk
            if over > 0 and (let_in or life.name not in self._excused):
                self.broken(
                    f"rule 3: {life.name} has promised {promised[account]} {account}, of {allowed[account]}"
                    + (", and let somebody in" if let_in else "")
                )

    def _is_over(self, name: str) -> bool:
        """Whether the bank would give its slice to others by now."""
        lease = self._leases.get(name)
        return lease is None or self._world.now_ns // _MS >= lease[1]

    def _look_at_the_engine(self) -> None:
        """Rule 7."""
        world = self._world
        if world.weather.policy is not Policy.WORST_CASE or self._excused:
            return
        own, shared = 0, set[int]()
        for life in world.lives:
            for living in life.gate.ledger if not life.dead else ():
                keys = world.prefixes[living.reservation_id][: (living.footprint.prompt_tokens - 1) // 16]
                own += living.peak_blocks - len(keys)
                shared.update(keys)
        if own + len(shared) > world.weather.pool_blocks:
            self.broken(f"rule 7: {own} blocks and {len(shared)} shared ones may be held at once")

    # At the bank

    def before_call(self, now_ms: int) -> None:
        """The bank is about to hear of it."""
        self._leases = {name: lease for name, lease in self._leases.items() if now_ms < lease[1]}
        self._before = {name: self._world.bank.slice_of(name, BLOCKS) for name in self._leases}

    def after_call(self, call: Call, answer: Answer | None, now_ms: int) -> None:
        """Rules 4 and 5, and the bank's own sum."""
        world, bank = self._world, self._world.bank
        lease = self._leases.get(call.branch)
        heeded = lease is None or call.number > lease[0]
        if heeded != (answer is not None):
            self.broken(f"rule 5: call {call.number} of {call.branch} after {lease} got {answer}")
        if answer is not None:
            if call.leaves:
                self._leases.pop(call.branch, None)
            else:
                self._leases[call.branch] = (call.number, now_ms + call.lease_ms)
            if answer.known != (lease is not None):
                self.broken(f"rule 5: {call.branch} is known: {answer.known}, and its lease was {lease}")
        for name, before in self._before.items():
            now = bank.slice_of(name, BLOCKS)
            if name != call.branch and now != before:
                self.broken(f"rule 5: {name} had {before} and has {now} after a call of {call.branch}")
            kept = next((line.keeps for line in call.lines if line.account == BLOCKS), 0)
            if name == call.branch and heeded and now < min(before, kept):
                self.broken(f"rule 5: {name} had {before}, keeps {kept}, and has {now}")
        for account, most in ((BLOCKS, world.weather.pool_blocks), (SEQUENCES, world.weather.max_num_seqs)):
            if bank.granted(account) > most:
                self.broken(f"rule 1: {bank.granted(account)} {account} are granted, of {most}")
            owned = sum([bank.slice_of(name, account) for name in self._leases])
            if owned != bank.granted(account):
                self.broken(f"rule 4: {bank.granted(account)} {account} are granted, {owned} to those heard of")

    def bank_forgot(self) -> None:
        """It starts without memory."""
        self._leases = {}
        self._excused |= {life.name for life in self._world.lives}

    # Gates

    def heard(self, life: "Life", answer: Answer) -> None:
        """A gate knows its slice again; when it is within that, it has no excuse any more."""
        promised = life.gate.promised_blocks(), life.gate.ledger.sequences
        slices = [answer.slices[account].granted for account in _ACCOUNTS]
        if all(ours <= most for ours, most in zip(promised, slices, strict=True)):
            self._excused.discard(life.name)

    def died(self, life: "Life") -> None:
        """It crashed or left."""
        self._excused.discard(life.name)

    # Who waits

    def _look_at_the_first(self) -> None:
        """Rule 6 while requests still come."""
        world, weather = self._world, self._world.weather
        now_ns = world.now_ns
        if now_ns < weather.storm_ns + 4 * weather.lease_ns or weather.policy is Policy.LEARNED:
            return
        heads = []
        for life in world.lives:
            head = None if life.dead else life.gate.first_waiting()
            if head is not None:
                since_ns = life.world_ns(head.since_ns)
                heads.append((head.arrived.priority, since_ns, head.arrived.request_id, head, life))
        if not heads:
            self._room_since_ns = None
            return
        _, _, name, head, life = min(heads)
        if name != self._first[0]:
            self._first, self._room_since_ns = (name, now_ns), None
        longest_ns = 200 * _MS + weather.most_new * 20 * _MS
        if now_ns - self._first[1] > 2 * longest_ns + 2 * _ROOM_SEEN_NS:
            self.broken(f"rule 6: {name} is the first of all that wait for {(now_ns - self._first[1]) / 1e9:.1f} s")
        commons: dict[str, int] = {}
        for one in world.lives:
            commons |= _commons_of(one)
        promised = Blocks(sum([life.gate.promised_blocks() for life in world.lives]) + sum(commons.values()))
        sequences = sum([life.gate.ledger.sequences for life in world.lives])
        kept = life.gate.fairness.kept_from(head.arrived, life.own_ns(now_ns))  # of a more urgent class
        if kept is not None:
            promised, sequences = Blocks(promised + int(kept.most(SPREAD))), sequences + int(kept.slots)
        fits = promised + head.peak_blocks <= weather.pool_blocks and sequences < weather.max_num_seqs
        if not fits or self._room_since_ns is None:
            self._room_since_ns = now_ns if fits else None
        elif now_ns - self._room_since_ns > _ROOM_SEEN_NS:
            waits = (now_ns - self._room_since_ns) / 1e9
            self.broken(f"rule 6: {name} waits for {waits:.1f} s beside room for its {head.peak_blocks} blocks")

    def look_at_the_end(self) -> None:
        """Rule 6 when nobody has been there for some leases."""
        world, weather = self._world, self._world.weather
        for life in world.lives:
            if life.gate.promised_blocks() or life.gate.ledger.sequences or life.gate.queue:
                self.broken(f"rule 6: {life.name} is not empty in the end")
        for account, most in ((BLOCKS, weather.pool_blocks), (SEQUENCES, weather.max_num_seqs)):
            reserves = 2 * len(world.lives) * max(1, most // 100)
            if world.bank.granted(account) > reserves:
                self.broken(f"rule 6: {world.bank.granted(account)} {account} are not free in the end")


def _commons_of(life: "Life") -> dict[str, int]:
    ledger = life.gate.ledger
    return {name: ledger.common_blocks_of(len(keys)) for name, keys in ledger.commons.items()}
