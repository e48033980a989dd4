"""What a gate has of a ledger that others share: the store, a part for each of its instances, which come and go, and
what is learned together of lengths, of clients who were told to come back, and of keys of prompts."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable

from kvbudget.edge.bank.store import BankStore, LedgerError
from kvbudget.edge.instances.instance import Instance
from kvbudget.edge.sharing.keys import SharedKeys
from kvbudget.edge.sharing.lending import Borrower, Lending
from kvbudget.edge.sharing.lengths import SharedLengths
from kvbudget.edge.sharing.returns import SharedReturns
from kvbudget.edge.tokens.keys import PrefixKeys
from kvbudget.gate.bank.branch import Branch
from kvbudget.gate.learning.lengths import Lengths

log = logging.getLogger("kvbudget.ledger")


class SharedLedger:
    """Made before it runs; `start` connects, `close` gives everything back."""

    def __init__(
        self,
        store: BankStore,
        lease_ns: int,
        borrower: Borrower,
        lendings: list[Lending],
        now_ns: Callable[[], int],
        lengths: Callable[[], Lengths],
        *,
        alone_if_lost: bool,
        keys: PrefixKeys | None = None,
    ) -> None:
        """`lendings`: where the gateway finds the parts; of the first it is told what tenants have. `lengths`: what the
        gate learns. `keys`: of prompts, if the gates are to hold in common what these begin with."""
        self.store = store
        self.lendings = lendings
        self._lease_ns = lease_ns
        self._borrower = borrower
        self._now_ns = now_ns
        self._alone_if_lost = alone_if_lost
        self._life = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(6).hex()}"  # never the same again
        self._lives = 0
        self.lengths = SharedLengths(store, self._life, lengths)
        self.returns = SharedReturns(store, self._life, lendings, now_ns)
        self._notes = [self.lengths.notes, self.returns.notes]
        if keys is not None:
            self._notes.append(SharedKeys(store, self._life, keys).notes)
        self._runs = False
        store.woken = self._woken

    def take(self, instance: Instance) -> None:
        """From now on it promises out of a slice of its pool."""
        self._lives += 1  # one that comes back is another life of its gate
        lending = Lending(
            instance.member, self.store, Branch(f"{self._life}-{self._lives}", self._lease_ns), self._borrower,
            self._now_ns, life=self._life, alone_if_lost=self._alone_if_lost, tells_tenants=not self.lendings,
        )  # fmt: skip
        instance.seen, lending.look_soon = lending.looked, instance.backend.look_soon
        self.lendings.append(lending)
        if self._runs:
            lending.start()

    async def gone(self, instance: Instance) -> None:
        """It has left; nothing of it is under way."""
        for lending in [one for one in self.lendings if one.pool == instance.member.name]:
            self.lendings.remove(lending)
            lending.give_all()
            await lending.close()
        if self.lendings:
            self.lendings[0].replica.tells_tenants = True

    async def start(self) -> None:
        """Connect, and let every part begin. Who comes while the ledger cannot be reached waits, and then gets 503."""
        self._runs = True
        try:
            await self.store.start()
        except LedgerError as error:
            log.error("%s", error)
            self._borrower.ledger_failed()
        for lending in self.lendings:
            lending.start()
        for notes in self._notes:
            notes.start()

    def give_all(self) -> None:
        """Hold nobody who comes any more."""
        for lending in self.lendings:
            lending.give_all()

    async def close(self) -> None:
        """Give everything back. Nobody may live any more."""
        for notes in self._notes:
            await notes.close()
        await asyncio.gather(*[lending.close() for lending in self.lendings])
        await self.store.close()

    def _woken(self, pool: str, branch: str) -> None:
        for lending in self.lendings:
            if lending.pool == pool:
                lending.woken(branch)
