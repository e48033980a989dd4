"""How layers are dealt out over groups, on small made-up models."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.engines.vllm.grouping import PromotionError, groups_of
from kvbudget.engines.vllm.spec import Family, Spec, are_alike, are_of_one_type
from kvbudget.errors import UnsupportedError
from kvbudget.pool.groups import Content

FULL = Spec(Family.FULL, 16, 4096, Content(256), (8, 128))
SLIDING = Spec(Family.SLIDING, 16, 4096, Content(256, 128), (8, 128), 128)
LATENT = Spec(Family.MLA, 64, 73728, Content(1152), (512, 64))
STATE = Spec(Family.MAMBA, 16, 4000, Content(0, 0, 4000), ("gdn",), fixed_blocks=2, replicated=True)


def sizes(specs: list[Spec], *, hybrid_manager: bool = True, packed: bool = False) -> list[list[int]]:
    groups = groups_of(specs, hybrid_manager=hybrid_manager, packed=packed)
    return [[member.place for member in group] for group in groups]


def test_layers_that_are_all_alike_are_one_group() -> None:
    assert sizes([FULL] * 3) == [[0, 1, 2]]


def test_full_layers_of_different_width_are_one_group_of_mixed_pages() -> None:
    wide = FULL._replace(page=8192, identity=(16, 128))
    assert sizes([FULL, wide, FULL]) == [[0, 1, 2]]


def test_layers_are_dealt_round_so_that_every_pipeline_stage_gets_some_of_each_group() -> None:
    # two full, four sliding: the sliding ones make two groups of two, every other layer each
    specs = [FULL, SLIDING, SLIDING, FULL, SLIDING, SLIDING]
    assert sizes(specs) == [[0, 3], [1, 4], [2, 5]]


def test_nearly_as_many_layers_are_padded_up_instead_of_split() -> None:
    # 12 sliding and 13 full with a draft head: padded to 13, not split into groups of 12
    assert [len(group) for group in sizes([SLIDING] * 12 + [FULL] * 13)] == [12, 13]
    assert [len(group) for group in sizes([SLIDING] * 2 + [FULL] * 3)] == [2, 2, 1]


def test_a_smaller_page_that_divides_the_largest_gets_larger_blocks() -> None:
    narrow = FULL._replace(page=2048, identity=(4, 128), content=Content(128))
    groups = groups_of([narrow, SLIDING], hybrid_manager=True, packed=False)
    assert [group[0].spec.block_size for group in groups] == [32, 16]
    assert {group[0].spec.page_bytes for group in groups} == {4096}


def test_a_smaller_page_that_does_not_divide_is_padded() -> None:
    odd = FULL._replace(page=3000, identity=(3, 125))
    groups = groups_of([odd, SLIDING], hybrid_manager=True, packed=False)
    assert [(group[0].spec.block_size, group[0].spec.page_bytes) for group in groups] == [(16, 4096), (16, 4096)]


def test_a_recurrent_page_is_padded_never_scaled() -> None:
    groups = groups_of([STATE, FULL], hybrid_manager=True, packed=False)
    assert [group[0].spec.page_bytes for group in groups] == [4096, 4096]
    assert groups[0][0].spec.fixed_blocks == 2


def test_without_the_hybrid_manager_sliding_layers_keep_every_token() -> None:
    groups = groups_of([FULL, SLIDING], hybrid_manager=False, packed=False)
    assert [len(group) for group in groups] == [2]
    assert [member.spec.family for member in groups[0]] == [Family.FULL, Family.FULL]
    assert [member.spec.content.window for member in groups[0]] == [0, 0]


def test_a_model_of_sliding_layers_alone_keeps_its_windows_without_the_hybrid_manager() -> None:
    groups = groups_of([SLIDING] * 2, hybrid_manager=False, packed=False)
    assert groups[0][0].spec.family is Family.SLIDING


def test_windows_of_two_sizes_cannot_be_promoted_to_one_type() -> None:
    chunked = SLIDING._replace(family=Family.CHUNKED, window=512, page=5000, block_size=32)
    with pytest.raises(PromotionError, match="unified type"):
        groups_of([FULL, SLIDING, chunked._replace(family=Family.CROSS)], hybrid_manager=False, packed=False)


def test_a_latent_beside_sliding_layers_of_another_page_falls_back_to_full_allocation() -> None:
    sliding = SLIDING._replace(block_size=64, page=100_000)
    groups = groups_of([LATENT, sliding], hybrid_manager=True, packed=False)
    assert [len(group) for group in groups] == [2]


def test_a_latent_beside_a_chunked_layer_of_another_page_has_no_grouping() -> None:
    chunked = SLIDING._replace(family=Family.CHUNKED, page=100_000)
    with pytest.raises(UnsupportedError, match="cannot unify"):
        groups_of([LATENT, chunked], hybrid_manager=True, packed=False)


def test_packed_pages_stay_together_in_their_pattern() -> None:
    # two pages of one type, as often each: the pattern must stay whole, and the third bucket splits to its length
    small = Spec(Family.MLA, 256, 100, Content(1), ("compressed", "a"))
    large = Spec(Family.MLA, 256, 300, Content(3), ("compressed", "b"))
    window = Spec(Family.SLIDING_MLA, 64, 200, Content(2, 128), ("compressed", "c"), 128)
    specs = [window, small, large, window, small, large, window, window]
    assert sizes(specs, packed=True) == [[0, 6], [3, 7], [1, 2, 4, 5]]


def test_likeness_ignores_a_window_that_only_the_computation_has() -> None:
    windowed = FULL._replace(window=128)
    assert are_alike([FULL, windowed])
    assert not are_alike([FULL._replace(window=64), windowed])
    assert not are_alike([FULL, FULL._replace(page=1)])


def test_one_type_needs_one_block_size_and_one_window() -> None:
    assert are_of_one_type([SLIDING, SLIDING._replace(page=1)])
    assert not are_of_one_type([SLIDING, SLIDING._replace(window=7)])
    assert not are_of_one_type([FULL, FULL._replace(block_size=32)])
    assert not are_of_one_type([FULL, SLIDING])
    assert are_of_one_type([LATENT, LATENT._replace(page=1)])
    assert not are_of_one_type([STATE, STATE._replace(fixed_blocks=3)])


@given(
    kinds=st.lists(
        st.sampled_from([FULL, SLIDING, STATE, FULL._replace(page=2048, identity=(4,))]), min_size=1, max_size=40
    )
)
def test_every_layer_is_in_exactly_one_group_and_no_group_is_empty(kinds: list[Spec]) -> None:
    groups = sizes(kinds)
    assert sorted(index for group in groups for index in group) == list(range(len(kinds)))
    assert all(groups)


@given(kinds=st.lists(st.sampled_from([FULL, SLIDING, STATE]), min_size=2, max_size=40))
def test_pages_of_all_groups_are_equal_after_grouping(kinds: list[Spec]) -> None:
    groups = groups_of(kinds, hybrid_manager=True, packed=False)
    if len(groups) > 1:
        assert len({member.spec.page_bytes for group in groups for member in group}) == 1
