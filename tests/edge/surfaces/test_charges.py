import pytest

from kvbudget.edge.openai.ask import Ask, Surface, parse_ask
from kvbudget.edge.surfaces import charges
from kvbudget.gate.config import GateConfig
from kvbudget.gate.events import CapacityChanged
from kvbudget.gate.gate import Gate
from kvbudget.pool.groups import uniform_layout
from kvbudget.units import Blocks, Tokens


@pytest.fixture
def gate() -> Gate:
    config = GateConfig(prefill_tokens_per_step=1000, max_num_seqs=8)
    gate = Gate(config, uniform_layout(16), Blocks(512))
    gate.handle(CapacityChanged(uniform_layout(16), Blocks(512), Tokens(4096)), 0)
    return gate


ASK: Ask = parse_ask(Surface.CHAT, b'{"messages":[{"role":"user","content":"a"}],"max_tokens":100}')


def lengths(*tokens: int) -> tuple[Tokens, ...]:
    return tuple(map(Tokens, tokens))


def test_an_earlier_response_takes_what_the_window_leaves_beside_its_output(gate: Gate) -> None:
    assert charges.whole_window(ASK, lengths(1), gate) == (3996,)
    assert charges.whole_window(ASK._replace(max_new_tokens=Tokens(5000)), lengths(1), gate) == (1,)


def test_a_prompt_without_output_is_charged_its_own_blocks(gate: Gate) -> None:
    (charged,) = charges.prefill_only(ASK, lengths(32), gate)
    assert uniform_layout(16).blocks_for(charged + 1) == 2


def test_of_many_prompts_so_many_of_the_longest_are_charged_as_a_step_can_hold(gate: Gate) -> None:
    assert charges.prefill_only(ASK, lengths(101, 401, 501, 1), gate) == (500, 400, 100, 1)  # less than a step
    assert charges.prefill_only(ASK, lengths(*[501] * 100), gate) == (500, 500, 500)  # 1,000 and the one begun before
    assert charges.prefill_only(ASK, lengths(*[11] * 100), gate) == (10,) * 8  # the engine runs no more


def test_no_list_is_charged_more_than_the_pool_because_the_engine_takes_it_in_turns(gate: Gate) -> None:
    gate.handle(CapacityChanged(uniform_layout(16), Blocks(64), Tokens(4096)), 0)
    assert charges.prefill_only(ASK, lengths(*[401] * 100), gate) == (400, 400)  # 26 blocks each
    assert charges.prefill_only(ASK, lengths(2000, 2000), gate) == (1999,)  # one that never fits is told so


def test_pairs_are_charged_both_texts_and_what_wraps_them(gate: Gate) -> None:
    more = charges.PAIR_TOKENS
    assert charges.pairs(ASK, lengths(10, 1, 3), gate) == (13 + more, 11 + more)
    assert charges.matched_pairs(ASK, lengths(10, 20, 1, 3), gate) == (23 + more, 11 + more)


def test_what_cannot_be_counted_is_charged_as_windows(gate: Gate) -> None:
    assert charges.windows(ASK, lengths(1), gate) == (4095,)
    assert charges.windows(ASK, lengths(1, 1, 1), gate) == (4095, 4095)


def test_what_the_engine_truncates_is_charged_its_count(gate: Gate) -> None:
    assert charges.within_window(ASK, lengths(7), gate) == (7,)
