"""What becomes of notes with time and many gates; the rules that hold in a server as well are in tests/edge/bank."""

from kvbudget.gate.bank.board import KEEP_MS, MOST_NOTES, MOST_READ, Board, Put, again


def test_a_gate_reads_every_note_of_many_a_few_at_a_time() -> None:
    board, seen = Board(), 0
    read: list[tuple[str, str]] = []
    for number in range(20):
        board.exchange(Put(f"gate {number}", 1, 0, f"text {number}"), 0)
    while answer := board.exchange(Put("reader", 1, seen, ""), 0).notes:
        assert len(answer) <= MOST_READ
        read += answer
        seen = board.exchange(Put("reader", 1, seen, ""), 0).seen
    assert read == [(f"gate {number}", f"text {number}") for number in range(20)]


def test_of_too_many_the_oldest_note_goes() -> None:
    board = Board()
    for number in range(MOST_NOTES + 1):
        board.exchange(Put(f"gate {number}", 1, 0, "text"), 0)
    assert not board.exchange(Put("gate 0", 2, 0, ""), 0).known
    assert board.exchange(Put("gate 1", 2, 0, ""), 0).known


def test_a_note_of_which_nothing_is_heard_goes_after_an_hour() -> None:
    board = Board()
    board.exchange(Put("a", 1, 0, "text"), 0)
    board.exchange(Put("b", 1, 0, "text"), 0)
    board.exchange(Put("b", 2, 0, ""), KEEP_MS - 1)
    assert board.exchange(Put("c", 1, 0, ""), KEEP_MS).notes == (("b", "text"),)


def test_an_old_note_replaces_no_newer_one() -> None:
    board = Board()
    board.exchange(Put("a", 2, 0, "new"), 0)
    assert board.exchange(Put("a", 1, 0, "old"), 0).known
    assert board.exchange(Put("b", 1, 0, ""), 0).notes == (("a", "new"),)


def test_who_got_as_many_as_there_may_be_reads_on_without_leaving_anything() -> None:
    board = Board()
    for number in range(MOST_READ):
        board.exchange(Put(f"gate {number}", 1, 0, "text"), 0)
    put = Put("reader", 3, 0, "mine")
    more = again(put, board.exchange(put, 0))
    assert more == Put("reader", 3, MOST_READ + 1, "")
    assert more is not None
    assert again(more, board.exchange(more, 0)) is None
    assert board.exchange(Put("other", 1, MOST_READ, ""), 0).notes == (("reader", "mine"),)
