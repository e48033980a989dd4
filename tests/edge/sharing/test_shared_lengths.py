"""Gates of one ledger learn lengths together; a ledger that fails, or foreign words in it, cost nothing but that."""

import asyncio
import logging

import pytest

from kvbudget.edge.bank.lengths_note import packed
from kvbudget.edge.bank.memory import MemoryStore
from kvbudget.edge.bank.store import LedgerError
from kvbudget.edge.sharing.lengths import TOPIC, SharedLengths
from kvbudget.gate.bank.board import MOST_READS, Notes, Put
from kvbudget.gate.bank.experience import Experience
from kvbudget.gate.learning.lengths import Lengths

SOON_S = 0.005


class Failing(MemoryStore):
    """A store that can be lost."""

    lost: Exception | None = None
    asked = 0

    async def exchange(self, topic: str, put: Put) -> Notes:
        self.asked += 1
        if self.lost is not None:
            raise self.lost
        return await super().exchange(topic, put)


def seen(answers: int) -> Lengths:
    lengths = Lengths()
    see(lengths, answers)
    return lengths


def see(lengths: Lengths, answers: int) -> None:
    for _ in range(answers):
        for habit in lengths.chain("acme", "chat m", 1024, 100):
            habit.lived(0, 80)
            habit.ended(80)


def gate(store: MemoryStore, life: str, lengths: Lengths) -> SharedLengths:
    return SharedLengths(store, life, lambda: lengths, every_s=SOON_S)


def test_each_learns_what_the_others_see() -> None:
    async def scene() -> None:
        store, mine, theirs = MemoryStore(), seen(6), seen(4)
        one, other = gate(store, "one", mine), gate(store, "other", theirs)
        for _ in range(2):
            await one.notes.exchange()
            await other.notes.exchange()
        assert [one.taken, other.taken] == pytest.approx([4, 6], rel=0.02)
        assert mine.answers == pytest.approx(10, rel=0.03)
        assert theirs.answers == pytest.approx(10, rel=0.03)
        board = store.boards[TOPIC]
        before = board.exchange(Put("reader", 1, 0, ""), 0).seen
        await one.notes.exchange()
        await one.notes.exchange()
        assert board.exchange(Put("reader", 1, 0, ""), 0).seen <= before + 1  # what did not change is not left again

    asyncio.run(scene())


@pytest.mark.parametrize("gates", [9, 10, 20, 64])
def test_of_any_number_of_busy_gates_each_hears_all(gates: int) -> None:
    """With one answer for each note of one's own, a gate heard the eight that had left theirs first."""

    async def scene() -> None:
        store = Failing()
        all_lengths = [seen(2) for _ in range(gates)]
        all_gates = [gate(store, str(number), lengths) for number, lengths in enumerate(all_lengths)]
        for _ in range(2):
            for one, lengths in zip(all_gates, all_lengths, strict=True):
                await one.notes.exchange()
                see(lengths, 1)  # so that each leaves another note every time
        for round_of_reads in range(
            3
        ):  # in the second some hear what others left after them, in the third there is no news
            for one in all_gates:
                before = store.asked
                await one.notes.exchange()
                assert store.asked - before <= MOST_READS
            if round_of_reads:
                taken = [one.taken for one in all_gates]
                assert taken == pytest.approx([4 * (gates - 1)] * gates, rel=0.02)  # of each two, and one twice: once

    asyncio.run(scene())


def test_a_board_that_lost_its_memory_is_told_anew() -> None:
    async def scene() -> None:
        store = MemoryStore()
        one, other = gate(store, "one", seen(6)), gate(store, "other", Lengths())
        await one.notes.exchange()
        store.boards.clear()
        await one.notes.exchange()  # nothing has changed, so nothing is left; the answer tells that it has to be
        await one.notes.exchange()
        await other.notes.exchange()
        assert other.taken == pytest.approx(6, rel=0.02)

    asyncio.run(scene())


def test_it_goes_on_by_itself_until_it_is_closed() -> None:
    async def scene() -> None:
        store, theirs = Failing(), Lengths()
        one, other = gate(store, "one", seen(6)), gate(store, "other", theirs)
        await other.notes.close()  # in any state
        one.notes.start()
        other.notes.start()
        async with asyncio.timeout(20):
            while theirs.answers < 5:
                await asyncio.sleep(SOON_S)
        await one.notes.close()
        await other.notes.close()
        asked = store.asked
        await asyncio.sleep(3 * SOON_S)
        assert store.asked == asked

    asyncio.run(scene())


@pytest.mark.parametrize("failure", [LedgerError("ledger: gone"), RuntimeError("a bug")])
def test_a_ledger_that_fails_is_tried_again_and_said_once(failure: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        store, theirs = Failing(), Lengths()
        await gate(store, "one", seen(6)).notes.exchange()
        store.lost = failure
        other = gate(store, "other", theirs)
        other.notes.start()
        async with asyncio.timeout(20):
            while store.asked < 4:
                await asyncio.sleep(SOON_S)
            store.lost = None
            while theirs.answers < 5:
                await asyncio.sleep(SOON_S)
        await other.notes.close()

    asyncio.run(scene())
    said = [record for record in caplog.records if record.levelno >= logging.WARNING]
    if isinstance(failure, LedgerError):
        assert [record.getMessage() for record in said] == [
            "lengths of answers are learned by this gate alone for now: ledger: gone"
        ]
    else:
        assert len(said) >= 2


def test_words_that_are_not_ours_are_left_alone_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        store, theirs = MemoryStore(), Lengths()
        other = gate(store, "other", theirs)
        for number in range(1, 4):
            await store.exchange(TOPIC, Put("stranger\x1b", number, 0, f"never {number}"))
            await other.notes.exchange()
        assert theirs.answers == 0.0
        await store.exchange(TOPIC, Put("friend", 1, 0, packed(list(Experience().told(seen(3))))))
        await other.notes.exchange()
        assert theirs.answers == pytest.approx(3, rel=0.02)

    asyncio.run(scene())
    assert [record.getMessage()[:50] for record in caplog.records if record.levelno >= logging.WARNING] == [
        "what gate stranger? has learned is left alone: no "
    ]


def test_strangers_without_end_are_not_remembered_without_end() -> None:
    async def scene() -> None:
        store = MemoryStore()
        other = gate(store, "other", Lengths())
        for number in range(300):
            await store.exchange(TOPIC, Put(f"stranger {number}", 1, 0, "x"))
            await other.notes.exchange()
        assert len(other.notes.refused_lives) <= 128

    asyncio.run(scene())


def test_the_event_loop_has_its_turn_between_a_few_habits() -> None:
    async def scene() -> None:
        lengths = Lengths()
        for tenant in range(60):
            for habit in lengths.chain(f"tenant {tenant}", "chat m", 1024, 100):
                habit.lived(0, 80)
                habit.ended(80)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        store = MemoryStore()
        await gate(store, "one", lengths).notes.exchange()
        assert turns >= 15
        before = turns
        await gate(store, "other", Lengths()).notes.exchange()
        assert turns >= before + 15
        counting.cancel()

    asyncio.run(scene())
