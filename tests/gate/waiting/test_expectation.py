import pytest

from kvbudget.gate.waiting.expectation import MAX_WAIT_NS, Expectation
from kvbudget.pool.footprint import Footprint
from kvbudget.pool.groups import uniform_layout
from kvbudget.pool.ledger import Ledger
from kvbudget.units import Blocks, Tokens

SECOND = 10**9


def a_ledger_of(*lengths: int) -> Ledger:
    ledger = Ledger(uniform_layout(16), Blocks(1000))
    for number, new in enumerate(lengths):
        ledger.reserve(f"r{number}", "t", Footprint((Tokens(16),), Tokens(new)), paced=True, now_ns=0)
    return ledger


def test_it_learns_time_per_token_and_how_much_of_the_limit_is_used() -> None:
    expectation = Expectation()
    (ended,) = a_ledger_of(100)
    expectation.learn(ended, 50, 5 * SECOND)
    assert expectation.ns_per_token == pytest.approx(0.1 * SECOND)
    assert expectation.used_share == pytest.approx(0.5)
    expectation.learn(ended, 100, 10 * SECOND)
    assert expectation.used_share == pytest.approx(0.55)


def test_an_answer_without_tokens_teaches_nothing() -> None:
    expectation = Expectation()
    (ended,) = a_ledger_of(100)
    expectation.learn(ended, 0, 5 * SECOND)
    assert expectation == Expectation()


def test_room_that_is_there_needs_no_waiting() -> None:
    assert Expectation().wait_ns(a_ledger_of(), missing_blocks=0, missing_sequences=-1, now_ns=0) == 0


def test_the_wait_ends_with_whose_end_brings_enough_blocks_and_places() -> None:
    expectation = Expectation(ns_per_token=SECOND, learned=True)
    ledger = a_ledger_of(16, 32, 48)  # 2, 3 and 4 blocks; 16, 32 and 48 s
    waits = [
        expectation.wait_ns(ledger, missing_blocks=blocks, missing_sequences=places, now_ns=0) // SECOND
        for blocks, places in ((1, 0), (2, 1), (3, 0), (5, 0), (1, 3), (6, 0))
    ]
    assert waits == [16, 16, 32, 32, 48, 48]


def test_what_has_been_seen_shortens_the_wait() -> None:
    expectation = Expectation(ns_per_token=SECOND, learned=True)
    ledger = a_ledger_of(32)
    ledger.progress("r0", 20, 1)
    assert expectation.wait_ns(ledger, missing_blocks=1, missing_sequences=0, now_ns=0) == 12 * SECOND
    ledger.progress("r0", 12, 2)  # past what was expected: any moment now
    assert expectation.wait_ns(ledger, missing_blocks=1, missing_sequences=0, now_ns=0) == SECOND


def test_behind_a_full_queue_the_pool_has_to_turn_over_once_for_each_poolful() -> None:
    expectation = Expectation(ns_per_token=SECOND, used_share=0.5, learned=True)
    ledger = a_ledger_of(16, 16)  # 4 blocks in all; each lives about 8 s
    waits = [
        expectation.wait_ns(ledger, missing_blocks=blocks, missing_sequences=0, now_ns=7 * SECOND) // SECOND
        for blocks in (4, 8, 16)
    ]
    assert waits == [1, 16, 32]
    assert expectation.wait_ns(ledger, missing_blocks=1, missing_sequences=6, now_ns=0) == 24 * SECOND


def test_nothing_longer_than_clients_obey_is_told() -> None:
    expectation = Expectation(ns_per_token=SECOND, learned=True)
    ledger = a_ledger_of(500)
    assert expectation.wait_ns(ledger, missing_blocks=1, missing_sequences=0, now_ns=0) == MAX_WAIT_NS
    assert expectation.wait_ns(ledger, missing_blocks=10**6, missing_sequences=0, now_ns=0) == MAX_WAIT_NS
    assert expectation.wait_ns(a_ledger_of(), missing_blocks=1, missing_sequences=0, now_ns=0) == MAX_WAIT_NS


def test_before_anybody_ended_the_pace_of_those_that_stream_is_taken() -> None:
    ledger = a_ledger_of(100, 100)
    ledger.progress("r0", 1, 10 * SECOND)  # its prompt took so long, which says nothing of a token
    assert Expectation().wait_ns(ledger, missing_blocks=1, missing_sequences=0, now_ns=10 * SECOND) < 2 * SECOND
    ledger.progress("r0", 50, 11 * SECOND)
    told = Expectation().wait_ns(ledger, missing_blocks=12, missing_sequences=0, now_ns=15 * SECOND)
    assert told == pytest.approx(49 * SECOND // 10)
