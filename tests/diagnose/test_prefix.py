"""Why a prefix cache gives nothing, and how the three causes are told apart by numbers."""

import pytest

from kvbudget.diagnose.prefix import (
    counter_unwired,
    prefix_cache_below_block,
    prefix_cache_no_sharing,
    prefix_cache_off,
    prefix_cache_too_small,
)
from kvbudget.diagnose.symptoms import Symptoms
from kvbudget.engines.window import Counts
from windows import histogram, pool_of, symptoms

RULES = (prefix_cache_below_block, prefix_cache_too_small, prefix_cache_no_sharing)


def causes(s: Symptoms) -> list[str]:
    return [found.code.removeprefix("prefix_cache_") for rule in RULES if (found := rule(s)) is not None]


def asked(hits: float, queries: float, before: tuple[float, float] = (0, 0), /, **given: object) -> Symptoms:
    """`before`: (hits, queries) from the start to the window."""
    totals = Counts(
        prefix_hits=hits + before[0], prefix_queries=queries + before[1], finished={"stop": 100.0},
        prompt_tokens=queries + before[1],
    )  # fmt: skip
    figures = {
        "usage": 0.3, "running": 5, "waiting": 0, "pool": pool_of(40_000), "totals": totals, "prefix_hits": hits,
        "prefix_queries": queries,
    }  # fmt: skip
    return symptoms(**{**figures, **given})


@pytest.mark.parametrize(
    ("s", "cause"),
    [
        (asked(0, 10_000), "no_sharing"),
        (asked(199, 10_000), "no_sharing"),
        (asked(200, 10_000), None),
        (asked(0, 499), None),
        (asked(0, 1_599), "below_block"),  # 15.99 tokens a prompt, a block of 16
        (asked(0, 1_600), "no_sharing"),
        (asked(0, 200_000, smallest_block=784, largest_block=784), "below_block"),
        (asked(0, 5_000_000, smallest_block=16, largest_block=784), "below_block"),
        (asked(0, 10_608, largest_block=8320, max_model_len=4096), "below_block"),
        (asked(16_640, 38_448, largest_block=8320, max_model_len=16_384), None),
        (asked(0, 10_000, prefix_caching=False), None),
        (asked(10_000, 100_000, usage=0.8), None),  # a steady low rate is what there is to share, until more is seen
        (asked(25_000, 100_000, (25_000, 100_000), usage=0.85, window_s=30.0), None),
        (asked(10_000, 100_000, (20_000, 100_000), usage=0.85), "too_small"),
        (asked(11_000, 100_000, (20_000, 100_000), usage=0.85), None),
        (asked(5_000, 100_000, usage=0.79), None),
        (asked(40_000, 100_000, usage=0.95), None),
        (asked(59_000, 100_000, usage=0.3), None),
        (asked(1_000, 100_000, (60_000, 100_000), usage=0.6), "too_small"),
        (asked(1_000, 100_000, (60_000, 100_000), usage=0.59), "no_sharing"),
        (asked(0, 100_000, usage=0.9), "no_sharing"),
    ],
)
def test_one_cause_at_most(s: Symptoms, cause: str | None) -> None:
    assert causes(s) == ([cause] if cause else [])


def test_how_long_a_cached_block_lasts_tells_a_cache_that_is_turned_over() -> None:
    """14 beginnings of 384 tokens in a pool of 2,048: 29 % hit, and each block lasts for a fifth of a second."""
    thrash = {
        "usage": (0.47, 0.0), "pool": pool_of(2_048, 32), "generation_tokens": 2_410, "window_s": 4.0,
        "computed_lengths": histogram({50.0: 43.0, 200.0: 0.0, 500.0: 109.0, float("inf"): 0.0}, 44_064.0),
    }  # fmt: skip
    assert causes(asked(17_920, 61_984, **thrash)) == ["too_small"]
    found = prefix_cache_too_small(asked(17_920, 61_984, **thrash))
    assert found is not None
    assert found.evidence["cache_lasts_s"] == pytest.approx(0.18, abs=0.01)
    half = {
        **thrash,
        "computed_lengths": histogram({50.0: 37.0, 500.0: 2.0, 1000.0: 44.0, float("inf"): 0.0}, 27_344.0),
    }
    assert causes(asked(19_136, 46_480, **half)) == ["too_small"]
    few = {**thrash, "computed_lengths": histogram({50.0: 70.0, 500.0: 13.0, float("inf"): 0.0}, 7_000.0)}
    assert causes(asked(19_136, 46_480, **few)) == []  # hardly anybody finds nothing
    alike = {**thrash, "computed_lengths": histogram({50.0: 0.0, 500.0: 152.0, float("inf"): 0.0}, 44_064.0)}
    assert causes(asked(17_920, 61_984, **alike)) == []  # each finds all that is shared: there is no more
    assert causes(asked(17_920, 61_984, **{**thrash, "computed_lengths": None})) == []  # no sign that more is shared
    roomy = asked(17_920, 61_984, usage=0.3, pool=pool_of(400_000), window_s=4.0)
    assert causes(roomy) == []


def test_no_sharing_is_only_fairly_sure_and_less_where_prompts_are_short_or_the_pool_is_pressed() -> None:
    for s, level in (
        (asked(0, 10_000), "medium"),
        (asked(0, 2_000), "low"),
        (asked(0, 10_000, usage=0.9), "low"),
        (asked(0, 10_000, (50, 10_000)), "low"),
    ):
        found = prefix_cache_no_sharing(s)
        assert found is not None
        assert found.sure.level == level
        assert "three times" in found.refuted_by


def test_a_length_under_a_block_is_certain() -> None:
    found = prefix_cache_below_block(asked(0, 10_608, largest_block=8320, max_model_len=4096))
    assert found is not None
    assert found.sure.level == "high"


def test_hits_of_another_counter_say_that_this_one_is_not_wired() -> None:
    s = asked(0, 10_000, extra={"prompt_tokens_cached": 6_000.0})
    assert counter_unwired(s) is not None
    assert causes(s) == []
    external = asked(0, 10_000, extra={"prompt_tokens_cached": 6_000.0, "external_prefix_hits": 6_000.0})
    assert counter_unwired(external) is None


def test_first_tokens_of_alike_prompts_that_come_at_very_different_times_say_it_too() -> None:
    """5.5 s, then 0.8 s, with hits at 0 and nobody waiting."""
    given = {
        "prompt_lengths": histogram({20_000.0: 8.0, float("inf"): 0.0}, 150_000.0),
        "ttft_s": histogram({1.0: 4.0, 6.0: 4.0, float("inf"): 0.0}, 25.0),
        "queue_s": histogram({0.3: 8.0, float("inf"): 0.0}, 0.1),
    }
    assert counter_unwired(asked(0, 150_000, **given)) is not None
    assert counter_unwired(asked(0, 150_000, **{**given, "waiting": 4})) is None
    mixed = histogram({200.0: 4.0, 20_000.0: 4.0, float("inf"): 0.0}, 80_000.0)
    assert counter_unwired(asked(0, 150_000, **{**given, "prompt_lengths": mixed})) is None


def test_a_cache_that_is_off_is_told_and_nothing_else_of_it() -> None:
    assert prefix_cache_off(asked(0, 10_000, prefix_caching=False)) is not None
    assert prefix_cache_off(asked(0, 10_000)) is None


def test_under_a_full_pool_nothing_is_said_of_the_cache_but_what_is_certain() -> None:
    full = {"usage": 0.99, "running": 40, "waiting": 9}
    assert causes(asked(5_000, 100_000, **full)) == []
    assert causes(asked(0, 100_000, **full)) == []
    assert causes(asked(0, 10_608, largest_block=8320, max_model_len=4096, **full)) == ["below_block"]
