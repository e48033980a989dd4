"""How a gate asks the ledger that it shares with others, wherever that lives."""

from collections.abc import Callable
from typing import Protocol

from kvbudget.gate.bank.terms import Answer, Call


class LedgerError(Exception):
    """The ledger cannot be reached, did not answer in time, or refused."""


class BankStore(Protocol):
    """Banks by pool."""

    # (pool, branch): the bank says that this branch should call soon.
    woken: Callable[[str, str], None]

    async def start(self) -> None:
        """Connect, as far as that can be done now; does not fail because it cannot."""

    async def call(self, pool: str, call: Call) -> Answer | None:
        """The bank's answer; None: the call was out of date. Raises LedgerError."""

    async def close(self) -> None:
        """End all connections."""
