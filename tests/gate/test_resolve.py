"""Which lengths a request is promised."""

from collections.abc import Callable

from kvbudget.gate.events import Arrived
from kvbudget.gate.refusing.refusals import Refusal
from kvbudget.gate.resolve import largest_context, most_new_tokens, resolve
from kvbudget.pool.footprint import Footprint
from kvbudget.pool.groups import uniform_layout
from kvbudget.pool.ledger import Ledger
from kvbudget.units import Blocks, Tokens

Arrive = Callable[..., Arrived]


def ledger(blocks: int = 10) -> Ledger:
    return Ledger(uniform_layout(16), Blocks(blocks))


def test_what_was_asked_for_is_promised_where_it_fits(arrive: Arrive) -> None:
    assert resolve(arrive("a", 100, 20), Tokens(160), 4, ledger()) == (Footprint((Tokens(100),), Tokens(20)), 8)


def test_a_limit_is_cut_to_the_context(arrive: Arrive) -> None:
    assert resolve(arrive("a", 100, 999), Tokens(130), 4, ledger()) == (Footprint((Tokens(100),), Tokens(30)), 9)


def test_a_prompt_that_leaves_no_room_is_refused(arrive: Arrive) -> None:
    assert resolve(arrive("a", 160, 1), Tokens(160), 4, ledger()) is Refusal.CONTEXT_EXCEEDED


def test_more_sequences_than_the_engine_runs_are_refused(arrive: Arrive) -> None:
    assert resolve(arrive("a", sequences=5), None, 4, ledger()) is Refusal.TOO_MANY_SEQUENCES


def test_a_limit_that_nobody_named_shrinks_to_the_pool_and_a_named_one_does_not(arrive: Arrive) -> None:
    unnamed = resolve(arrive("a", 140, None), None, 4, ledger())
    assert unnamed == (Footprint((Tokens(140),), Tokens(20)), 10)
    assert resolve(arrive("a", 140, 64), None, 4, ledger()) is Refusal.NEVER_FITS
    assert resolve(arrive("a", 160, None), None, 4, ledger()) is Refusal.NEVER_FITS


def test_a_bound_is_worth_no_more_than_the_context_leaves(arrive: Arrive) -> None:
    """The bound from bytes is 400 tokens, the engine's window 160: the true prompt cannot be more than 140."""
    resolved = resolve(arrive("a", 400, 20, exact=False), Tokens(160), 4, ledger())
    assert resolved == (Footprint((Tokens(140),), Tokens(20)), 10)
    greedy = resolve(arrive("a", 400, 999, exact=False), Tokens(160), 4, ledger())
    assert greedy == (Footprint((Tokens(1),), Tokens(159)), 10)


def test_the_context_is_the_least_of_what_is_known() -> None:
    assert [largest_context(cap, ledger()) for cap in (None, Tokens(100), Tokens(1000))] == [160, 100, 160]


def test_most_new_tokens_are_what_an_idle_engine_could_serve(arrive: Arrive) -> None:
    assert most_new_tokens(arrive("a", 100, 1), Tokens(160), ledger()) == 60
    assert most_new_tokens(arrive("a", 30, 1, sequences=2), Tokens(160), ledger()) == 50
    assert most_new_tokens(arrive("a", 200, 1), Tokens(160), ledger()) == 0


def test_several_whose_bound_is_taken_too_lightly_are_promised_what_the_bound_leaves(arrive: Arrive) -> None:
    """Three that might each take the whole window of 60 are more than the pool; with prompts of 40 they are not."""
    three = arrive("a", 40, 999, exact=False, sequences=3)
    assert resolve(three, Tokens(60), 4, ledger()) is not None
    assert resolve(three, Tokens(60), 4, ledger()) == resolve(three._replace(exact=True), Tokens(60), 4, ledger())
    assert resolve(arrive("a", 60, 999, exact=False, sequences=3), Tokens(60), 4, ledger()) is Refusal.NEVER_FITS
