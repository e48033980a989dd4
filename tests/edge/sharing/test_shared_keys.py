"""Gates of one ledger agree on the secret by which they make keys of prompts."""

import asyncio

import pytest

from kvbudget.edge.bank.memory import MemoryStore
from kvbudget.edge.sharing.keys import TOPIC, SharedKeys
from kvbudget.edge.tokens.keys import PrefixKeys
from kvbudget.gate.bank.board import Put


def gate(store: MemoryStore, life: str) -> tuple[SharedKeys, PrefixKeys]:
    keys = PrefixKeys()
    return SharedKeys(store, life, keys), keys


async def rounds(*gates: SharedKeys, count: int = 3) -> None:
    for _ in range(count):
        for one in gates:
            await one.notes.exchange()


def test_those_who_begin_together_take_the_least_and_who_comes_later_takes_theirs() -> None:
    async def scene() -> None:
        store = MemoryStore()
        (one, mine), (other, theirs) = gate(store, "one"), gate(store, "other")
        await asyncio.gather(one.notes.exchange(), other.notes.exchange())
        assert (mine.agreed, theirs.agreed) == (None, None)
        await asyncio.gather(one.notes.exchange(), other.notes.exchange())
        await rounds(one, other)
        agreed = mine.agreed
        assert agreed is not None
        assert len(agreed) == 16
        assert theirs.agreed == agreed
        for number in range(5):
            late, keys = gate(store, f"late-{number}")
            await late.notes.exchange()
            assert keys.agreed == agreed

    asyncio.run(scene())


def test_a_ledger_that_forgets_costs_no_secret() -> None:
    async def scene() -> None:
        store = MemoryStore()
        (one, mine), (other, theirs) = gate(store, "one"), gate(store, "other")
        await rounds(one, other)
        agreed = mine.agreed
        store.boards.clear()
        await rounds(one, other)
        late, keys = gate(store, "late")
        await late.notes.exchange()
        assert mine.agreed == theirs.agreed == keys.agreed == agreed

    asyncio.run(scene())


def test_a_foreign_note_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        store = MemoryStore()
        one, mine = gate(store, "one")
        await one.notes.exchange()
        for life, text in (("new", "2 " + "00" * 16), ("short", "1 00"), ("foreign", "1 " + "0g" * 16)):
            await store.exchange(TOPIC, Put(life, 1, 0, text))
        await rounds(one)
        assert mine.agreed is not None
        assert mine.agreed != bytes(16)

    asyncio.run(scene())
    assert caplog.text.count("what gate") == 3
