"""Gates of one ledger know whom the others have told to come back; whatever is lost costs no more than that."""

import asyncio
import logging
import time
from typing import Any, cast

import pytest

from kvbudget.edge.bank.memory import MemoryStore
from kvbudget.edge.bank.store import LedgerError
from kvbudget.edge.sharing.lending import Lending
from kvbudget.edge.sharing.returns import TOPIC, SharedReturns
from kvbudget.gate.bank.appointments import Appointments
from kvbudget.gate.bank.board import MOST_READ, Put
from kvbudget.gate.events import Arrived
from kvbudget.gate.refusing.returns import Returns
from kvbudget.units import Tokens

ASKED = Arrived("a", (Tokens(100),), Tokens(20), Tokens(16))
SECOND = 10**9
SOON_S = 0.005


class Pool:
    """As much of a Lending as is looked at."""

    def __init__(self, pool: str, life: str) -> None:
        self.pool = pool
        self.returns = Returns()
        self.appointments = Appointments(self.returns, life)


class Gate:
    """One gate with two pools, whose clock shows `began_s` when that of the wall shows none."""

    def __init__(self, store: MemoryStore, life: str, began_s: int) -> None:
        self.now_s = 0
        self.began_s = began_s
        self.pools = [Pool("one", life), Pool("two", life)]
        lendings = cast("list[Lending]", self.pools)
        self.shared = SharedReturns(
            store, life, lendings, lambda: (self.began_s + self.now_s) * SECOND, wall_ns=lambda: self.now_s * SECOND,
            every_s=SOON_S,
        )  # fmt: skip

    def at(self, now_s: int) -> int:
        self.now_s = now_s
        return (self.began_s + now_s) * SECOND


def test_who_is_told_by_one_is_expected_by_all_for_the_same_pool_and_time() -> None:
    async def scene() -> None:
        store = MemoryStore()
        one, other = Gate(store, "one", 5), Gate(store, "other", 1000)
        one.pools[0].returns.tell(ASKED, 4 * SECOND, 96 * SECOND, 40, 40, 7, one.at(1))
        for gate in (one, other):
            gate.at(2)
            await gate.shared.notes.exchange()
        first, second = other.pools
        assert second.returns.state[1] == 0
        assert first.returns.claim(ASKED, other.at(4)) is None
        assert first.returns.claim(ASKED, other.at(5)) is not None
        one.at(5)
        for gate in (other, one):
            await gate.shared.notes.exchange()
        assert one.pools[0].returns.state[1] == 0
        assert one.pools[0].returns.share.known == 1

    asyncio.run(scene())


def test_with_more_gates_than_are_read_at_once_each_says_less_often() -> None:
    async def scene() -> None:
        store = MemoryStore()
        for number in range(3 * MOST_READ):
            await store.exchange(TOPIC, Put(f"stranger {number}", 1, 0, "x"))
        gate = Gate(store, "one", 0)
        await gate.shared.notes.exchange()
        assert gate.shared.notes.reads == 4
        began = time.monotonic()
        await gate.shared.notes.exchange()
        assert time.monotonic() - began >= 3 * SOON_S
        assert gate.shared.notes.reads == 1

    asyncio.run(scene())


def test_words_that_are_not_ours_and_a_lost_ledger_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(MemoryStore):
        asked = 0

        async def exchange(self, topic: str, put: Put) -> Any:
            self.asked += 1
            if self.asked > 3:
                raise LedgerError("ledger: gone")
            return await super().exchange(topic, put)

    async def scene() -> None:
        store = Failing()
        await store.exchange(TOPIC, Put("stranger", 1, 0, "never"))
        gate = Gate(store, "one", 0)
        gate.shared.notes.start()
        async with asyncio.timeout(20):
            while store.asked < 6:
                await asyncio.sleep(SOON_S)
        await gate.shared.notes.close()

    asyncio.run(scene())
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 2
    assert said[0].startswith("what gate stranger has told its clients is left alone: no times told")
    assert said[1] == "who comes back is known only to the gate that told it for now: ledger: gone"
