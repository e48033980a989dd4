"""Notes that gates leave each other: the same rules in memory, over a Unix socket, in Redis and in Valkey."""

import random
from typing import Any

from kvbudget.gate.bank.board import KEEP_MS, LONGEST_NOTE, MOST_NOTES, MOST_READS, Board, Notes, Put, again


def test_each_reads_what_the_others_left_once(bank: Any) -> None:
    assert bank.exchange(Put("a", 1, 0, "of a")) == Notes(1, True, ())
    assert bank.exchange(Put("b", 1, 0, "of b")) == Notes(2, True, (("a", "of a"),))
    assert bank.exchange(Put("b", 2, 2, "")) == Notes(2, True, ())
    assert bank.exchange(Put("a", 2, 1, "")) == Notes(2, True, (("b", "of b"),))
    assert bank.exchange(Put("a", 3, 2, "anew")) == Notes(3, True, ())
    assert bank.exchange(Put("b", 3, 2, "")) == Notes(3, True, (("a", "anew"),))


def test_a_note_that_comes_late_or_twice_is_not_heeded(bank: Any) -> None:
    bank.exchange(Put("a", 1, 0, "first"))
    bank.exchange(Put("a", 3, 0, "third"))
    assert bank.exchange(Put("a", 2, 2, "second")) == Notes(2, True, ())
    assert bank.exchange(Put("a", 3, 2, "third")) == Notes(2, True, ())
    assert bank.exchange(Put("b", 1, 0, "")) == Notes(2, False, (("a", "third"),))


def test_who_has_read_more_than_there_is_reads_all_anew(bank: Any) -> None:
    """The board has lost its memory since."""
    bank.exchange(Put("a", 1, 900, "of a"))
    assert bank.exchange(Put("b", 1, 900, "")) == Notes(1, False, (("a", "of a"),))


def test_a_note_is_kept_for_an_hour_after_it_was_said_that_it_holds(bank: Any) -> None:
    bank.exchange(Put("a", 1, 0, "of a"))
    bank.exchange(Put("b", 1, 0, "of b"))
    bank.now_ms += KEEP_MS - 1
    bank.exchange(Put("a", 2, 2, ""))
    bank.now_ms += 1
    assert bank.exchange(Put("c", 1, 0, "")).notes == (("a", "of a"),)
    assert not bank.exchange(Put("b", 2, 2, "")).known  # so that it leaves it anew


def test_the_longest_note_and_the_most_of_them_come_back_whole(bank: Any) -> None:
    texts = {f"gate {number}": f"{number:02}" + "x" * (LONGEST_NOTE - 2) for number in range(MOST_NOTES)}
    for life, text in texts.items():
        bank.exchange(Put(life, 1, 0, text))
    read: dict[str, str] = {}
    seen = 0
    for _ in range(MOST_NOTES):
        answer = bank.exchange(Put("gate 0", 2, seen, ""))
        read |= dict(answer.notes)
        if not answer.notes:
            break
        seen = answer.seen
    assert read == {life: text for life, text in texts.items() if life != "gate 0"}


def test_who_reads_on_leaves_nothing_and_has_read_all_at_the_end(bank: Any) -> None:
    others = [f"gate {number}" for number in range(19)]
    for life in others:
        bank.exchange(Put(life, 1, 0, f"of {life}"))
    put, read = Put("reader", 1, 0, "of the reader"), list[str]()
    for _ in range(MOST_READS):
        answer = bank.exchange(put)
        assert answer.known
        read += [life for life, _ in answer.notes]
        more = again(put, answer)
        if more is None:
            break
        put = more
        bank.exchange(Put(others[0], 2 + len(read), 0, f"of {others[0]}, {len(read)}"))  # left anew: to the end
    assert read == [*others, others[0]]
    assert bank.exchange(Put("another", 1, 19, "")).notes[0] == ("reader", "of the reader")


def test_whatever_is_put_the_answers_are_those_of_the_reference(bank: Any) -> None:
    chance, board = random.Random(11), Board()
    began_ms = bank.now_ms
    seen = dict.fromkeys([f"gate {number}" for number in range(80)], 0)
    numbers = dict.fromkeys(seen, 0)
    for step in range(600):
        life = chance.choice(list(seen) if step % 3 else ["gate 1", "gate 2"])
        numbers[life] = number = max(1, numbers[life] + chance.choice([1, 1, 1, 0, -1]))
        put = Put(life, number, chance.choice([seen[life], seen[life], 0, 10_000]), chance.choice(["", "é", str(step)]))
        answer = bank.exchange(put)
        assert answer == board.exchange(put, bank.now_ms - began_ms)
        seen[life] = answer.seen
        if chance.random() < 0.05:
            bank.now_ms += chance.choice([1000, KEEP_MS // 4])
