from typing import Any

import pytest

from kvbudget.errors import AccountingError, BadValueError
from kvbudget.pool.groups import Group, LayerKind, Layout, uniform_layout
from kvbudget.simulate.paged_engine import FinishReason, PagedEngine, SchedulingPolicy
from kvbudget.units import Blocks, Bytes, Tokens


def engine(
    num_blocks: int = 9,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    max_model_len: int = 32,
    **options: Any,
) -> PagedEngine:
    """Blocks of 4 tokens; 8 usable ones hold one request of the whole window."""
    return PagedEngine(uniform_layout(4), num_blocks, max_num_seqs, max_num_batched_tokens, max_model_len, **options)


def held(paged: PagedEngine) -> dict[str, int]:
    return {request_id: len(paged.block_ids(request_id)) for request_id in paged.running}


def test_a_prompt_and_its_first_token_take_one_step_and_a_new_block_only_when_the_last_is_full() -> None:
    paged = engine()
    paged.add("a", 4, 3)
    first = paged.step()
    assert first.produced == ("a",)
    assert first.scheduled_tokens == 4
    assert held(paged) == {"a": 1}  # 4 computed tokens; the one just produced is not computed yet
    assert paged.step().scheduled_tokens == 1
    assert held(paged) == {"a": 2}
    assert paged.step().finished == (("a", FinishReason.LENGTH),)
    assert paged.free_blocks == 8
    assert not paged.has_unfinished_requests
    assert (paged.total_prompt_tokens, paged.total_generation_tokens) == (4, 3)


def test_a_request_ends_with_stop_when_its_natural_end_comes_before_the_limit() -> None:
    paged = engine()
    paged.add("a", 4, 9, stop_after=2)
    paged.add("b", 4, 2, stop_after=9)
    paged.step()
    assert paged.step().finished == (("a", FinishReason.STOP), ("b", FinishReason.LENGTH))


def test_more_than_the_window_is_clipped_in_silence() -> None:
    assert engine().add("a", 30, 100) == 2


def test_a_long_prompt_is_computed_in_chunks_and_takes_blocks_as_it_goes() -> None:
    paged = engine(max_num_batched_tokens=6)
    paged.add("a", 14, 2)
    steps = [paged.step() for _ in range(3)]
    assert [step.scheduled_tokens for step in steps] == [6, 6, 2]
    assert [step.produced for step in steps] == [(), (), ("a",)]


def test_running_requests_go_before_new_ones_in_the_token_budget() -> None:
    paged = engine(max_num_batched_tokens=6)
    paged.add("a", 5, 9)
    paged.add("b", 6, 9)
    assert paged.schedule().num_scheduled_tokens == {"a": 5, "b": 1}
    assert held(paged) == {"a": 2, "b": 1}


def test_nobody_overtakes_a_head_whose_whole_prompt_does_not_fit() -> None:
    paged = engine()
    paged.add("a", 20, 4)
    paged.add("b", 13, 1)  # 4 blocks, 3 are free
    paged.add("c", 1, 1)
    assert paged.schedule().num_scheduled_tokens == {"a": 20}
    assert paged.waiting == ("b", "c")


def test_admission_asks_for_the_whole_prompt_even_if_the_first_chunk_would_fit() -> None:
    paged = engine(max_num_batched_tokens=24)
    paged.add("a", 20, 4)
    paged.add("b", 13, 1)  # the chunk of 4 tokens that the budget leaves needs 1 block of the 3 free ones
    assert paged.schedule().num_scheduled_tokens == {"a": 20}


def test_no_more_than_max_num_seqs_run() -> None:
    paged = engine(max_num_seqs=2)
    for name in "abc":
        paged.add(name, 1, 2)
    paged.step()
    assert paged.running == ("a", "b")
    paged.step()
    assert paged.step().produced == ("c",)


def test_the_last_admitted_is_preempted_loses_everything_and_returns_before_the_others() -> None:
    paged = engine(num_blocks=5, max_model_len=16)  # 4 usable blocks
    paged.add("a", 7, 9)
    paged.add("b", 7, 9)
    paged.add("c", 1, 1)
    paged.step()  # a and b hold 2 blocks each, 7 tokens computed: nothing is left for c
    assert (paged.running, paged.waiting, paged.free_blocks) == (("a", "b"), ("c",), 0)
    paged.step()  # 8 tokens: still 2 blocks each
    assert paged.free_blocks == 0
    third = paged.step()  # a needs a third block: b loses its two, and a step that preempted admits nobody
    assert third.preempted == ("b",)
    assert third.produced == ("a",)
    assert (paged.running, paged.waiting) == (("a",), ("b", "c"))
    assert (held(paged), paged.free_blocks, paged.preemptions) == ({"a": 3}, 1, 1)
    while "a" in paged.running:
        assert paged.waiting == ("b", "c")  # b wants prompt and output again, 9 tokens: 3 blocks; c waits behind it
        paged.step()
    back = paged.schedule()
    assert back.num_scheduled_tokens == {"b": 9, "c": 1}
    assert back.admitted == ("b", "c")
    assert held(paged) == {"b": 3, "c": 1}  # nothing of what b had computed before counts
    result = paged.update_from_output(back)
    assert result.produced == ("b", "c")
    assert paged.total_prompt_tokens == 15  # recomputed tokens are not counted again


def test_a_request_that_is_itself_the_last_preempts_itself() -> None:
    paged = engine(num_blocks=5, max_model_len=16)
    paged.add("a", 5, 9)
    paged.add("b", 8, 8)
    paged.step()
    assert held(paged) == {"a": 2, "b": 2}
    assert paged.schedule().preempted == ("b",)  # a still has room in its second block, b has none
    assert paged.free_blocks == 2


def test_an_abort_frees_the_blocks_at_once_and_between_schedule_and_update_too() -> None:
    paged = engine()
    paged.add("a", 4, 9)
    paged.add("b", 4, 9)
    output = paged.schedule()
    assert paged.abort("a")
    assert paged.free_blocks == 7
    assert paged.update_from_output(output).produced == ("b",)
    assert not paged.abort("a")
    assert paged.abort("b")
    assert (paged.free_blocks, paged.aborted) == (8, 2)


def test_a_waiting_request_can_be_aborted() -> None:
    paged = engine(max_num_seqs=1)
    paged.add("a", 4, 9)
    paged.add("b", 4, 9)
    paged.step()
    assert paged.abort("b")
    assert paged.waiting == ()


def test_blocks_are_counted_over_all_groups_of_the_layout() -> None:
    group = Group(LayerKind.FULL, 1, Tokens(4), Bytes(4))
    wide = Group(LayerKind.FULL, 1, Tokens(8), Bytes(8))
    paged = PagedEngine(Layout((group, wide)), 20, 8, 64, 32)
    paged.add("a", 9, 1)
    paged.schedule()
    assert held(paged) == {"a": 3 + 2}


@pytest.mark.parametrize(("prompt", "new"), [(0, 1), (32, 1), (33, 1), (4, 0)])
def test_lengths_that_could_never_be_served_are_refused(prompt: int, new: int) -> None:
    with pytest.raises(BadValueError):
        engine().add("a", prompt, new)


def test_an_id_in_use_is_refused() -> None:
    paged = engine()
    paged.add("a", 1, 1)
    with pytest.raises(AccountingError, match="a is in the engine"):
        paged.add("a", 1, 1)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs: 0 is below 1"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens: 0"),
        ({"num_blocks": 8}, "needed, which is larger than the 7 usable ones"),
        ({"watermark": 1.0}, "watermark: 1.0 is not a share"),
        ({"watermark": -0.1}, "watermark: -0.1"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold: -1"),
    ],
)
def test_an_engine_that_could_not_run_does_not_start(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(BadValueError, match=message):
        engine(**limits)


def test_more_keys_than_the_prompt_has_full_blocks_are_refused() -> None:
    with pytest.raises(BadValueError, match="2 block keys for a prompt of 7 tokens"):
        engine().add("a", 7, 1, block_keys=(1, 2))


def test_the_watermark_stays_free_beside_others_but_who_is_alone_may_take_all() -> None:
    paged = engine(watermark=0.25)  # two of the blocks
    paged.add("a", 31, 1)
    assert paged.step().finished == (("a", FinishReason.LENGTH),)
    paged.add("b", 4, 9)
    paged.add("c", 24, 1)  # six of the seven that are left
    assert paged.schedule().admitted == ("b",)
    assert paged.waiting == ("c",)


def test_by_priority_the_last_in_rank_is_preempted_and_its_part_of_the_step_is_free_for_others() -> None:
    paged = engine(scheduling_policy=SchedulingPolicy.PRIORITY, max_num_batched_tokens=16)
    paged.add("last", 13, 9, priority=9)
    paged.step()
    paged.add("first", 16, 9, priority=0)
    for _ in range(2):
        paged.step()
    output = paged.schedule()  # "first" needs a block: "last", which has its token in this step already, loses all
    assert output.preempted == ("last",)
    assert output.num_scheduled_tokens == {"first": 1}
    assert output.total_num_scheduled_tokens == 1
    assert paged.update_from_output(output).produced == ("first",)


def test_whose_last_token_was_on_its_way_when_it_was_preempted_ends_while_it_waits() -> None:
    paged = engine(async_scheduling=True)
    paged.add("a", 15, 9)
    paged.add("b", 16, 9, stop_after=1)
    first = paged.schedule()
    assert paged.schedule().preempted == ("b",)  # for a token after its prompt: that it has ended is not known yet
    assert paged.waiting == ("b",)
    assert paged.update_from_output(first).finished == (("b", FinishReason.STOP),)
    assert (paged.num_waiting, paged.free_blocks) == (0, 4)


def test_states_are_crossed_in_parts_where_no_prompt_may_take_a_whole_block_in_a_step() -> None:
    state = Group(LayerKind.MAMBA, 1, Tokens(16), Bytes(1), fixed_blocks=Blocks(2))
    layout = Layout((state, Group(LayerKind.FULL, 1, Tokens(16), Bytes(1))))
    paged = PagedEngine(layout, 40, 8, 64, 128, prefix_caching=True, long_prefill_token_threshold=10)
    for name in "ab":
        paged.add(name, 50, 1)
    steps = [paged.step().scheduled_tokens for _ in range(3)]
    assert steps == [20, 12, 20]


def test_the_share_of_the_pool_that_is_held_is_told() -> None:
    paged = engine()
    assert paged.usage == 0
    paged.add("a", 8, 2)
    paged.step()
    assert paged.usage == 0.25
