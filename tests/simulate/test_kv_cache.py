"""What a prefix is worth where groups differ (whole courses: test_paged_engine_against_vllm.py)."""

import pytest

from kvbudget.errors import BadValueError, UnsupportedError
from kvbudget.pool.groups import Group, LayerKind, Layout
from kvbudget.simulate.engine_request import EngineRequest
from kvbudget.simulate.kv_cache import KvCache
from kvbudget.simulate.state_rule import prefill_chunk
from kvbudget.units import Blocks, Bytes, Tokens

FULL = Group(LayerKind.FULL, 1, Tokens(4), Bytes(4))
SLIDING = Group(LayerKind.SLIDING, 1, Tokens(4), Bytes(4), Bytes(0), Tokens(8 - 1 + 64), Blocks(1), window=Tokens(8))
STATE = Group(LayerKind.MAMBA, 1, Tokens(4), Bytes(4), fixed_blocks=Blocks(2))
CHUNKED = Group(LayerKind.CHUNKED, 1, Tokens(4), Bytes(4), most_tokens=Tokens(12 + 64), window=Tokens(12))


def cache_of(*groups: Group, retention: int | None = 0, caching: bool = True) -> KvCache:
    return KvCache(Layout(groups), 200, 256, prefix_caching=caching, retention=retention)


def request(serial: int, prompt: int, shared: int = 0) -> EngineRequest:
    """The first `shared` blocks of 4 tokens are those of every other request here."""
    return EngineRequest(f"r{serial}", serial, prompt, 9, None, 0, serial, tuple(range(1, shared + 1)))


def run_prefill(cache: KvCache, one: EngineRequest, chunk: int = 1000) -> int:
    """Compute the whole prompt; how much of it was found."""
    cache.begin_step()
    hit = cache.lookup(one)
    one.shared_prefix_tokens = hit.parted_at
    start = hit.tokens
    first = True
    while start < one.prompt_tokens:
        new = min(chunk, one.prompt_tokens - start)
        if cache.state_block_size:
            new = prefill_chunk(one, start, new, cache.state_block_size, chunk)
        assert cache.admit(one, new, hit, whole=True) if first else cache.grow(one, new)
        first = False
        start += new
        one.num_computed_tokens = start
        cache.begin_step()
    return hit.tokens


@pytest.mark.parametrize(("group", "second", "third"), [(SLIDING, 0, 20), (STATE, 0, 20)])
def test_a_shared_prefix_inside_prompts_is_found_from_the_third_request_on(
    group: Group, second: int, third: int
) -> None:
    """A window's blocks and states are kept at prompt ends, and where two prompts were seen to part."""
    cache = cache_of(group, FULL)
    assert run_prefill(cache, request(1, 40, shared=5)) == 0
    assert run_prefill(cache, request(2, 60, shared=5)) == second
    assert run_prefill(cache, request(3, 50, shared=5)) == third


@pytest.mark.parametrize("retention", [None, 4])
@pytest.mark.parametrize("group", [SLIDING, STATE])
def test_where_everything_is_kept_the_second_request_finds_it(group: Group, retention: int | None) -> None:
    cache = cache_of(group, FULL, retention=retention)
    run_prefill(cache, request(1, 40, shared=5), chunk=4)
    assert run_prefill(cache, request(2, 60, shared=5)) == 20


def test_a_prompt_that_is_sent_again_is_found_up_to_its_last_full_block_but_never_whole() -> None:
    for groups in ((FULL,), (SLIDING,), (SLIDING, FULL), (STATE, FULL)):
        cache = cache_of(*groups)
        run_prefill(cache, request(1, 40, shared=10))
        assert run_prefill(cache, request(2, 40, shared=10)) == 36


def test_a_state_that_is_written_in_this_step_can_only_be_used_in_the_next() -> None:
    cache = cache_of(STATE, FULL)
    one, two = request(1, 40, shared=10), request(2, 40, shared=10)
    assert cache.admit(one, 36, cache.lookup(one), whole=True)
    hit = cache.lookup(two)
    assert hit.tokens == 36
    assert not cache.admit(two, 4, hit, whole=True)
    cache.begin_step()
    assert cache.admit(two, 4, hit, whole=True)


def test_chunks_before_the_one_that_is_looked_at_need_no_blocks() -> None:
    cache = cache_of(CHUNKED)
    one = request(1, 40)
    hit = cache.lookup(one)
    assert (hit.tokens, list(hit.blocks[0])) == (36, [0] * 9)  # position 39 looks at 36 to 39 only
    assert cache.admit(one, 4, hit, whole=False)
    assert cache.held(one) == (1,)


def test_without_a_prefix_cache_nothing_is_found_and_a_state_is_one_block_for_life() -> None:
    cache = cache_of(STATE._replace(fixed_blocks=Blocks(1), block_size=Tokens(256)), FULL, caching=False)
    one = request(1, 40, shared=10)
    assert run_prefill(cache, one) == 0
    assert cache.held(one) == (1, 10)
    assert run_prefill(cache, request(2, 40, shared=10)) == 0
    cache.release(one)
    assert cache.held(one) == (0, 0)


def test_groups_with_blocks_of_other_sizes_agree_on_what_both_can_go_on_from() -> None:
    cache = cache_of(SLIDING, FULL._replace(block_size=Tokens(8)), retention=None)
    run_prefill(cache, request(1, 44, shared=11))
    assert run_prefill(cache, request(2, 44, shared=7)) == 24  # 28 tokens are the same; blocks of 8 hold 24


def test_where_two_prompts_part_is_told_once_some_group_has_more_than_all() -> None:
    cache = cache_of(SLIDING, FULL)
    run_prefill(cache, request(1, 40, shared=5))
    hit = cache.lookup(request(2, 60, shared=5))
    assert (hit.tokens, hit.parted_at) == (0, 20)


def test_what_is_free_must_hold_the_new_part_the_whole_sequence_and_the_headroom() -> None:
    cache = KvCache(Layout((FULL,)), 11, 256, prefix_caching=False, retention=0)
    one, nothing = request(1, 44), cache.lookup(request(1, 44))
    assert not cache.admit(one, 4, nothing, whole=True)
    assert not cache.admit(request(1, 40), 4, nothing, whole=True, headroom=1)
    assert not cache.admit(one, 40, nothing, whole=False, headroom=1)
    assert cache.admit(one, 40, nothing, whole=False)
    one.num_computed_tokens = 40
    assert not cache.grow(one, 1)
    assert not cache.admit(request(2, 1), 1, nothing, whole=False)
    assert (cache.held(one), cache.pool.free_blocks) == ((10,), 0)


def test_an_output_is_nobody_elses_and_a_prompt_without_keys_neither() -> None:
    cache = cache_of(FULL)
    one, two = request(1, 16), request(2, 16)
    assert run_prefill(cache, one) == 0
    assert run_prefill(cache, two) == 0
    assert cache.lookup(one).tokens == 12  # its own, when it returns after a preemption


def test_ids_that_a_request_holds_are_told_group_after_group() -> None:
    cache = cache_of(FULL, FULL)
    one = request(1, 8)
    run_prefill(cache, one)
    assert cache.block_ids(one) == (1, 2, 3, 4)
    cache.release(one)
    assert cache.block_ids(one) == ()


CROSS = Group(LayerKind.CROSS, 1, Tokens(4), Bytes(4), fixed_blocks=Blocks(3))


def test_groups_of_which_nothing_can_be_shared_do_not_hinder_the_others() -> None:
    cache = cache_of(CROSS, FULL)
    run_prefill(cache, request(1, 40, shared=10))
    two = request(2, 40, shared=10)
    assert run_prefill(cache, two) == 36
    assert cache.held(two) == (3, 10)


def test_windows_over_blocks_of_other_sizes_agree_on_the_end_of_a_wider_block() -> None:
    cache = cache_of(SLIDING, SLIDING._replace(block_size=Tokens(8)), retention=None)
    run_prefill(cache, request(1, 44, shared=11))
    assert cache.lookup(request(2, 31, shared=7)).parted_at == 0  # 28 tokens are there, but no place to part at
    assert run_prefill(cache, request(2, 31, shared=7)) == 24


@pytest.mark.parametrize("retention", [-4, 6])
def test_a_retention_that_is_no_multiple_of_the_blocks_is_refused(retention: int) -> None:
    with pytest.raises(BadValueError, match=f"prefix_retention_interval: {retention} is no multiple"):
        cache_of(SLIDING, FULL, retention=retention)


def test_a_retention_without_anything_to_retain_is_refused() -> None:
    with pytest.raises(BadValueError, match="has no effect"):
        cache_of(FULL, retention=4)


def test_a_window_of_unknown_width_is_refused() -> None:
    with pytest.raises(BadValueError, match="a sliding group with no window"):
        cache_of(SLIDING._replace(window=Tokens(0)))


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ((CROSS,), "nothing can be shared"),
        ((STATE._replace(fixed_blocks=Blocks(4)), FULL), "a state of 4 blocks"),
        ((STATE._replace(block_size=Tokens(8)), FULL, FULL._replace(block_size=Tokens(16))), "of 8 tokens"),
        ((CHUNKED, FULL._replace(block_size=Tokens(8))), "chunked attention beside"),
    ],
)
def test_what_is_not_followed_with_a_prefix_cache_is_refused_and_without_one_it_is_not(
    groups: tuple[Group, ...], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        cache_of(*groups)
    cache_of(*groups, caching=False)
