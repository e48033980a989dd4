"""Keeps one instance's gate in touch with the ledger that several gates share.

What is told when, and what an answer means, is `gate.bank.replica`; here are the timer, the calls under way, and what
becomes of a gate whose ledger does not answer: it lives on its slice until the lease is over, then refuses with 503 (or
goes by an equal part of the pool, if that was chosen), and ends what it has promised beyond what it gets back.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from kvbudget.edge.bank.store import BankStore, LedgerError
from kvbudget.gate.bank.appointments import Appointments
from kvbudget.gate.bank.branch import Branch
from kvbudget.gate.bank.replica import Replica
from kvbudget.gate.bank.terms import Call
from kvbudget.gate.events import Arrived, Event, Tick
from kvbudget.gate.fleet.member import Member
from kvbudget.units import Blocks

log = logging.getLogger("kvbudget.ledger")

_LEAVE_S = 1.0
_Comer = tuple[Arrived, Callable[[], None]]


class Borrower(Protocol):
    """Who promises out of the slice; the gateway."""

    def push_at(self, member: Member, event: Event) -> None:
        """Give an event to the gate of one instance."""

    def forfeit(self, member: Member, blocks: int) -> None:
        """End what was promised of blocks that are somebody else's now."""

    def ledger_failed(self) -> None:
        """The ledger did not answer, or not as it should."""


class Lending:
    """One instance's part. `start` begins it; `close` gives back what is left."""

    def __init__(
        self,
        member: Member,
        store: BankStore,
        branch: Branch,
        borrower: Borrower,
        now_ns: Callable[[], int],
        *,
        life: str = "",
        alone_if_lost: bool = False,
        tells_tenants: bool = True,
    ) -> None:
        """`life`: of the process, by which others know whom it has told to come back. `alone_if_lost`: go by an equal
        part of the pool while the ledger does not answer, rather than refuse. `tells_tenants`: see `Replica`."""
        self.replica = Replica(member.gate, branch, now_ns(), tells_tenants=tells_tenants)
        self.appointments = Appointments(member.gate.returns, life)
        self.calls = 0
        self.look_soon: Callable[[], None] = lambda: None  # what is known of the engine is too old
        self._member = member
        self._store = store
        self._borrower = borrower
        self._now_ns = now_ns
        self._alone_if_lost = alone_if_lost
        self._is_alone = False  # it went by an equal part since it was last heard of
        self._fails = False  # it was said that it does not answer
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        # Who came and is not given to the gate yet: until the answer to the call that asks for them; and who came while
        # that was under way, for whom the next one asks.
        self._coming: list[_Comer] = []
        self._next: list[_Comer] = []
        self._closed = False

    def start(self) -> None:
        """Promise nothing until the ledger answers."""
        self._borrower.push_at(self._member, self.replica.first)
        self.nudge(self._now_ns())

    @property
    def is_waiting(self) -> bool:
        """Whether somebody who came is held until the ledger answers."""
        return bool(self._coming or self._next)

    def looked(self, held: int, sequences: int, looked_ns: int) -> None:
        """The engine's own word of what it holds, and runs or lets wait, for all gates."""
        self.replica.looked(Blocks(held), sequences, looked_ns)
        self.nudge(self._now_ns())

    def nudge(self, now_ns: int) -> None:
        """Something may have happened at the gate: tell the ledger, if it is time."""
        if self._closed:
            return
        call = self.replica.due(now_ns)
        if call is not None:
            self._send(call)
        self._arm()

    def woken(self, branch: str) -> None:
        """The ledger asks one of the gates to call."""
        if branch != self.replica.branch.name or self._closed:
            return
        call = self.replica.called(self._now_ns())
        if call is not None:
            self._send(call)
        self._arm()

    def has_to_ask(self, event: Arrived, now_ns: int) -> bool:
        """Whether the ledger has to be asked for more before one that comes is given to the gate."""
        replica = self.replica
        if self._closed or replica.gate.ledger_lost:  # then it is refused at once
            return False
        return bool(self._next) or replica.lacks_slice(event, now_ns)

    def ask_for(self, event: Arrived, now_ns: int, then: Callable[[], None]) -> None:
        """Ask the ledger for one that has to; `then` follows."""
        if self._next or self.replica.is_calling:
            self._next.append((event, then))
            return
        call = self.replica.call_for([event], now_ns)
        if call is None:
            then()
        else:
            self._coming.append((event, then))
            self._send(call)

    @property
    def pool(self) -> str:
        """The name of the pool, the same for all gates before it."""
        return self._member.name

    def give_all(self) -> None:
        """Hold nobody who comes any more: the gate is being closed."""
        for _, then in [*self._coming, *self._next]:
            then()
        self._coming, self._next = [], []

    async def close(self) -> None:
        """Give everything back, as far as that can be told. Nobody may live any more."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.give_all()
        try:
            async with asyncio.timeout(_LEAVE_S):
                await self._store.call(self._member.name, self.replica.leave(self._now_ns()))
        except (LedgerError, TimeoutError):
            log.warning("the ledger was not told that this gate leaves; its blocks are free when the lease is over")

    def _send(self, call: Call) -> None:
        self.calls += 1
        task = asyncio.get_running_loop().create_task(self._exchange(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _exchange(self, call: Call) -> None:
        try:
            answer = await self._store.call(self._member.name, call)
        except LedgerError as error:
            self._failed(call, error)
        else:
            event = None if answer is None else self.replica.heard(answer, self._now_ns())
            if event is not None and answer is not None:
                if self._fails:
                    self._fails = False
                    log.info("the ledger of %s answers again", self._member.name)
                forgotten = not answer.known and call.number > 1
                self._borrower.push_at(self._member, event)
                if forgotten and not self._is_alone and (blocks := self.replica.overdrawn_blocks):
                    log.warning("%s: %d blocks were given to other gates meanwhile", self._member.name, blocks)
                    self._borrower.forfeit(self._member, blocks)
                self._is_alone = False
                if answer.missing:
                    self.look_soon()
        finally:
            self._resume()
            self.nudge(self._now_ns())

    def _failed(self, call: Call, error: LedgerError) -> None:
        self._borrower.ledger_failed()
        now_ns = self._now_ns()
        self.replica.failed(call, now_ns)
        if not self._fails:
            self._fails = True
            log.error("the ledger of %s: %s", self._member.name, error)
        if not self.replica.branch.is_lost(now_ns):
            return
        if not self._alone_if_lost:
            self._borrower.push_at(self._member, Tick())  # an idle gate hears of nothing else
        else:
            if not self._is_alone:
                self._is_alone = True
                log.warning("%s: without a ledger, this gate goes by an equal part of the pool", self._member.name)
            self._borrower.push_at(self._member, self.replica.alone(now_ns))

    def _resume(self) -> None:
        coming, self._coming = self._coming, []
        for one in coming:
            # One of its tenant's took what was left of the last word: the next word is waited for, one request each.
            if self.replica.lacks_word(one[0], self._now_ns()):
                self._next.append(one)
            else:
                one[1]()
        if not self._next or (self.replica.is_calling and not self._member.gate.ledger_lost):
            return
        coming, self._next = self._next, []
        call = None if self._closed else self.replica.call_for([event for event, _ in coming], self._now_ns())
        if call is None:
            for _, then in coming:
                then()
        else:
            self._coming = coming
            self._send(call)

    def _arm(self) -> None:
        wake_ns = self.replica.next_wake_ns
        if self._timer is not None:
            if self._timer_ns <= wake_ns:
                return  # it fires before, and looks again
            self._timer.cancel()
        self._timer_ns = wake_ns
        delay_s = max(0.0, (wake_ns - self._now_ns()) / 1e9)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.nudge(self._now_ns())
