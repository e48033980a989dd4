from kvbudget.gate.learning.lane import START_NS_PER_TOKEN, Lane
from kvbudget.gate.learning.pace import Pace

STEP_NS = 10_000_000


def lane_of() -> Lane:
    pace = Pace()
    pace.ns_per_step = STEP_NS
    return Lane(pace)


def taught(ns_per_token: int) -> Lane:
    """Of an engine that reads so fast, as far as the time is not that of a step."""
    lane = lane_of()
    for number in range(600):
        now_ns = number * 10**9
        lane.joined(f"r{number}", "t", 1000, now_ns, watched=True)
        lane.read(f"r{number}", now_ns + STEP_NS + 1000 * ns_per_token)
    return lane


def test_a_large_prompt_may_only_join_an_empty_lane_and_small_ones_share_it() -> None:
    lane = lane_of()
    assert lane.has_room(100_000, 128, 0)
    lane.joined("a", "t", 30, 0, watched=True)
    assert lane.has_room(98, 128, 0)
    assert not lane.has_room(99, 128, 0)
    lane.read("a", 1)
    lane.left("a", 1)  # it was read before
    assert lane.has_room(100_000, 128, 2)


def test_how_long_prompts_take_is_guessed_and_then_seen() -> None:
    assert lane_of().takes_ns(1000) == 1000 * START_NS_PER_TOKEN
    assert abs(taught(2000).takes_ns(1000) - 2_000_000) < 50_000


def test_prompts_that_are_read_in_one_step_take_its_time_together() -> None:
    lane, now_ns = lane_of(), 0
    for number in range(200):
        for part in range(8):
            lane.joined(f"r{number}-{part}", "t", 1000, now_ns, watched=True)
        now_ns += STEP_NS + 8000 * 3000
        for part in range(8):
            lane.read(f"r{number}-{part}", now_ns)
    assert abs(lane.ns_per_token - 3000) < 200


def test_of_what_is_always_read_nothing_is_left_out() -> None:
    lane = lane_of()
    lane.joined("r0", "t", 100, 0, watched=True)
    for number in range(1, 600):
        lane.joined(f"r{number}", "t", 100, number * 10**6 - 1, watched=True)
        lane.read(f"r{number - 1}", number * 10**6)
    assert abs(lane.ns_per_token - 10_000) < 100


def test_a_few_tokens_alone_tell_how_long_a_step_is_and_no_more() -> None:
    lane = lane_of()
    lane.joined("a", "t", 5, 0, watched=True)
    lane.read("a", STEP_NS)
    assert lane.ns_per_token == START_NS_PER_TOKEN


def test_who_leaves_tells_nothing_of_the_pace() -> None:
    lane = lane_of()
    lane.joined("a", "t", 5000, 0, watched=True)
    lane.left("a", 1)
    assert (lane.ns_per_token, lane.backlog_ns(10**12)) == (START_NS_PER_TOKEN, 0)


def test_whose_first_token_nobody_sees_is_thought_to_take_as_long_as_others_did() -> None:
    lane, start = taught(1000), 10**12
    lane.joined("silent", "t", 2000, start, watched=False)
    clear_ns = lane.clear_ns(start)
    assert clear_ns is not None
    assert abs(clear_ns - start - 2_000_000) < 50_000
    assert lane.backlog_ns(start) == clear_ns - start
    assert not lane.has_room(1000, 128, start)
    assert lane.has_room(1000, 128, clear_ns)
    assert lane.clear_ns(clear_ns) is None


def test_each_that_leaves_makes_the_rest_sooner_by_its_own_part_and_no_more() -> None:
    lane = lane_of()
    lane.resume(10**6)
    for name in "abc":
        lane.joined(name, "t", 1000, 0, watched=False)
    lane.left("a", 0)
    lane.left("b", 0)
    assert lane.backlog_ns(0) == 10**9
    lane.joined("d", "t", 1000, 5 * 10**9, watched=False)
    lane.left("c", 5 * 10**9)  # it was read long ago
    assert lane.backlog_ns(5 * 10**9) == 10**9


def test_by_a_mere_guess_nobody_waits_for_what_nobody_sees() -> None:
    lane = lane_of()
    lane.joined("a", "t", 10**6, 0, watched=False)
    assert lane.backlog_ns(0) == 0
    lane.joined("b", "t", 1000, 0, watched=True)
    lane.read("b", 60_000_000)
    assert lane.backlog_ns(60_000_000) > 10**9


def test_a_stall_is_no_pace() -> None:
    lane = lane_of()
    lane.joined("a", "t", 1000, 0, watched=True)
    lane.read("a", 120 * 10**9)
    assert lane.ns_per_token < 5 * START_NS_PER_TOKEN


def test_who_is_watched_no_more_is_read_all_the_same() -> None:
    lane = lane_of()
    lane.resume(10**6)
    lane.joined("a", "t", 1000, 0, watched=True)
    watched_ns = lane.backlog_ns(0)
    lane.lost("a", 0)
    lane.lost("a", 0)
    assert lane.backlog_ns(0) == watched_ns
    assert lane.backlog_ns(watched_ns) == 0


def test_what_was_learned_before_holds_until_more_is_seen() -> None:
    lane = lane_of()
    lane.resume(7000.0)
    assert lane.takes_ns(1000) == 7_000_000


def test_nobody_has_more_than_one_long_prompt_there_or_a_few_short_ones() -> None:
    lane = lane_of()
    assert lane.has_own_room("a", 10**6, 128)
    lane.joined("r1", "a", 28, 0, watched=True)
    lane.joined("r2", "a", 10, 0, watched=True)
    assert lane.has_own_room("a", 90, 128)
    assert not lane.has_own_room("a", 91, 128)
    assert lane.has_own_room("b", 10**6, 128)
    lane.left("r1", 1)
    lane.read("r2", 1)
    assert lane.has_own_room("a", 10**6, 128)
    assert lane._own == {}


def test_a_saved_pace_is_at_most_a_second_a_token() -> None:
    lane = lane_of()
    lane.resume(1e18)
    assert lane.takes_ns(3) == 3 * 10**9
    for number in range(100):  # and is learned anew
        lane.joined(f"r{number}", "t", 10_000, number * 10**9, watched=True)
        lane.read(f"r{number}", number * 10**9 + STEP_NS + 10**7)
    assert lane.takes_ns(1) < 10**8
