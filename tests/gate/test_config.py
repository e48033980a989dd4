"""What a gate is told, and what follows from it."""

from kvbudget.gate.config import GateConfig, worthwhile_wait_ns

SECOND = 10**9


def test_of_the_time_to_a_first_token_a_fifth_is_left_to_read_the_prompt() -> None:
    assert worthwhile_wait_ns(5 * SECOND) == 4 * SECOND == GateConfig().worthwhile_wait_ns
    assert worthwhile_wait_ns(1) == 0
