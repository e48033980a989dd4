from kvbudget.pool.groups import uniform_layout
from kvbudget.simulate.engine_start import start_refusal


def test_the_start_check_is_the_engines_with_the_null_block_taken_off() -> None:
    refusal = start_refusal(uniform_layout(16), 128, 2048)
    assert refusal is not None
    assert "the estimated maximum model length is 2032" in refusal
    assert start_refusal(uniform_layout(16), 129, 2048) is None


def test_a_pool_of_the_null_block_alone_and_a_window_of_one_token_are_refused() -> None:
    assert "No available memory for the cache blocks" in (start_refusal(uniform_layout(16), 1, 2048) or "")
    assert "leaves no room" in (start_refusal(uniform_layout(16), 9, 1) or "")
