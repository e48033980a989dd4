"""What the words of --policy mean."""

import pytest

from kvbudget.errors import BadValueError
from kvbudget.gate.policies import Policy
from kvbudget.simulate.policies import Contender, EngineFlags, checked_watermark, contender, contenders, known_policies


def test_words_name_the_gates_policies_no_gate_and_the_clairvoyant() -> None:
    assert contender("none").policy is None
    assert contender("worst-case").policy is Policy.WORST_CASE
    assert contender("trajectory").policy is Policy.TRAJECTORY
    assert contender("learned") == Contender("learned", Policy.LEARNED)
    assert contender("oracle") == Contender("oracle", Policy.LEARNED, clairvoyant=True)
    assert set(known_policies()) == {"none", "worst-case", "trajectory", "learned", "oracle"}


def test_flags_stand_alone_or_behind_a_policy() -> None:
    assert contender("max-num-queued-reqs=64").flags == EngineFlags(max_num_queued_reqs=64)
    assert contender("max-num-queued-reqs=64").policy is None
    both = contender("learned+watermark=0.05+max-num-queued-tokens=2000")
    assert both.policy is Policy.LEARNED
    assert both.flags == EngineFlags(None, 2000, 0.05)


def test_flags_that_hold_for_all_are_kept_unless_a_word_changes_them() -> None:
    first, second = contenders("none, watermark=0.1", EngineFlags(watermark=0.02))
    assert (first.flags.watermark, second.flags.watermark) == (0.02, 0.1)


def test_a_word_that_comes_twice_counts_once() -> None:
    assert [one.name for one in contenders("none,learned,none")] == ["none", "learned"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not known"),
        ("fastest", "not known"),
        ("none+learned", "two policies"),
        ("watermark=1", "share"),
        ("watermark=0.0_5", "share"),
        ("watermark=\u0660.\u0660\u0665", "share"),
        ("watermark=nan", "share"),
        ("watermark=x", "share"),
        ("max-num-queued-reqs=-1", "whole number"),
        ("max-num-queued-tokens=1e3", "whole number"),
        ("max-num-seqs=4", "no engine flag"),
    ],
)
def test_anything_else_is_an_error_that_says_what_there_is(text: str, told: str) -> None:
    with pytest.raises(BadValueError, match=told):
        contenders(text)


def test_a_watermark_is_a_share_below_one() -> None:
    assert checked_watermark("0.25") == 0.25
    with pytest.raises(BadValueError, match="watermark: -1"):
        checked_watermark(-1)
