"""Decides what a gate may expect of whoever keeps the bank: an answer, or an error that says what to do."""

from collections.abc import Callable
from typing import Protocol

from kvbudget.errors import KvbudgetError
from kvbudget.gate.bank.board import Notes, Put
from kvbudget.gate.bank.terms import Answer, Call

# (pool, branch): the bank says that this branch should call soon. A hint: it may be lost, or come too often.
Woken = Callable[[str, str], None]


class LedgerError(KvbudgetError):
    """The shared ledger was not reached, gave no answer in time, or refused.

    The call may have been heard all the same; that is no danger, since a branch lowers its slice before it says so.
    """

    code = "ledger"

    def anew(self) -> "LedgerError":
        """The same, for one more who is to be told: an error that is raised again and again keeps all its frames."""
        return LedgerError(self.message, fix=self.fix)


class BankStore(Protocol):
    """The banks of any number of pools, each with the rules of `gate.bank.bank`, and boards for notes beside them."""

    woken: Woken

    @property
    def address(self) -> str:
        """Where it is, for people: without a password."""
        ...

    async def start(self) -> None:
        """Raises LedgerError when the ledger cannot be reached now; it goes on trying until `close` all the same."""
        ...

    async def call(self, pool: str, call: Call) -> Answer | None:
        """The bank's answer; None: the call was out of date. Raises LedgerError."""
        ...

    async def exchange(self, topic: str, put: Put) -> Notes:
        """Leaves a note on the board of this topic, with the rules of `gate.bank.board`. Raises LedgerError."""
        ...

    async def close(self) -> None:
        """Ends all connections; calls that wait get a LedgerError."""
        ...


def not_heeded(_pool: str, _branch: str) -> None:
    """`woken` of a store that nobody listens to."""
