from kvbudget.gate.learning.lane import QUANTUM_TOKENS, Lane


def test_a_large_prompt_may_only_join_an_empty_lane_and_small_ones_share_it() -> None:
    lane = Lane()
    assert lane.has_room(100_000, 0)
    lane.joined("a", "t", 30, 0, watched=True)
    assert lane.has_room(QUANTUM_TOKENS - 30, 0)
    assert not lane.has_room(QUANTUM_TOKENS - 29, 0)
    lane.left("a", 1, computed=True)
    lane.left("a", 2, computed=False)  # it left already
    assert lane.has_room(100_000, 2)


def test_whose_first_token_nobody_sees_is_thought_to_take_as_long_as_others_did() -> None:
    lane = Lane()
    for number in range(200):  # 1 us a token
        lane.joined(f"r{number}", "t", 1000, number * 10**9, watched=True)
        lane.left(f"r{number}", number * 10**9 + 1_000_000, computed=True)
    start = 10**12
    lane.joined("silent", "t", 2000, start, watched=False)
    clear_ns = lane.clear_ns(start)
    assert clear_ns is not None
    assert 1_900_000 < clear_ns - start < 2_200_000
    assert not lane.has_room(1000, start)
    assert lane.has_room(1000, clear_ns)
    assert lane.clear_ns(clear_ns) is None


def test_the_pace_is_learned_from_all_that_was_before_it_and_not_from_who_left() -> None:
    lane = Lane()
    for number in range(300):
        lane.joined(f"a{number}", "t", 900, 0, watched=True)
        lane.joined(f"b{number}", "t", 100, 0, watched=True)
        lane.left(f"a{number}", 10**15, computed=False)
        lane.left(f"b{number}", 2_000_000, computed=True)  # 1000 tokens were before it: 2 us each
    lane.joined("silent", "t", 1000, 0, watched=False)
    clear_ns = lane.clear_ns(0)
    assert clear_ns is not None
    assert 1_990_000 < clear_ns < 2_010_000


def test_nobody_has_more_than_one_long_prompt_there_or_a_few_short_ones() -> None:
    lane = Lane()
    assert lane.has_own_room("a", 10**6)
    lane.joined("r1", "a", QUANTUM_TOKENS - 100, 0, watched=True)
    assert lane.has_own_room("a", 100)
    assert not lane.has_own_room("a", 101)
    assert lane.has_own_room("b", 10**6)
    lane.left("r1", 1, computed=True)
    assert lane.has_own_room("a", 10**6)
    assert lane._own == {}
