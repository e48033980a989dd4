"""What `vllm:cache_config_info` says of the pool, pitfalls included."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.engines.vllm_metrics import pool_from_cache_config
from kvbudget.errors import BadValueError

OBSERVED = {
    "block_size": "32",
    "num_gpu_blocks": "65",
    "num_gpu_blocks_override": "65",
    "kv_cache_size_tokens": "2080",
    "kv_cache_max_concurrency": "2.03125",
    "enable_prefix_caching": "True",
    "cache_dtype": "auto",
}


def test_the_labels_of_a_real_engine_give_its_pool() -> None:
    pool = pool_from_cache_config(OBSERVED)
    assert (pool.num_blocks, pool.usable_blocks, pool.block_size) == (65, 64, 32)
    assert (pool.tokens, pool.max_concurrency) == (2080, 2.03125)
    assert (pool.max_model_len, pool.blocks_per_request, pool.single_group) == (1024, 32, True)
    assert pool.prefix_caching is True


def test_blocks_times_block_size_is_not_the_pool_when_there_are_more_groups() -> None:
    """Gemma-3-27B at 131,072: 6 sliding groups and one full one, 14,726 blocks for one request, block size 16."""
    concurrency = 19660 / 14726
    labels = OBSERVED | {
        "block_size": "16",
        "num_gpu_blocks": "19660",
        "kv_cache_max_concurrency": repr(concurrency),
        "kv_cache_size_tokens": str(int(concurrency * 131072)),
    }
    pool = pool_from_cache_config(labels)
    assert pool.single_group is False
    assert pool.blocks_per_request == 14726


@pytest.mark.parametrize("missing", ["num_gpu_blocks", "block_size"])
@pytest.mark.parametrize("value", [None, "None", "", "0"])
def test_a_pool_that_is_not_sized_yet_is_a_clear_error(missing: str, value: str | None) -> None:
    labels = {**OBSERVED}
    del labels[missing]
    if value is not None:
        labels[missing] = value
    with pytest.raises(BadValueError, match=missing):
        pool_from_cache_config(labels)


@pytest.mark.parametrize("value", ["-1", "1.5", "nan", "x", "9" * 40, "６５"])
def test_damaged_labels_are_a_clear_error(value: str) -> None:
    with pytest.raises(BadValueError, match="num_gpu_blocks"):
        pool_from_cache_config(OBSERVED | {"num_gpu_blocks": value})


@pytest.mark.parametrize("value", ["inf", "nan", "-2", "x"])
def test_a_damaged_concurrency_is_a_clear_error(value: str) -> None:
    with pytest.raises(BadValueError, match="kv_cache_max_concurrency"):
        pool_from_cache_config(OBSERVED | {"kv_cache_max_concurrency": value})


def test_an_older_engine_without_the_printed_figures_still_tells_its_blocks() -> None:
    pool = pool_from_cache_config({"block_size": "16", "num_gpu_blocks": "1000", "enable_prefix_caching": "?"})
    assert (pool.usable_blocks, pool.tokens, pool.max_model_len, pool.single_group) == (999, None, None, None)
    assert pool.prefix_caching is None


@given(blocks=st.integers(2, 10**6), length=st.integers(1, 200_000), block_size=st.sampled_from([16, 32, 64]))
def test_one_group_is_recognised_from_what_the_engine_prints(blocks: int, length: int, block_size: int) -> None:
    need = -(-length // block_size)
    concurrency = blocks / need
    labels = {
        "block_size": str(block_size),
        "num_gpu_blocks": str(blocks),
        "kv_cache_max_concurrency": repr(concurrency),
        "kv_cache_size_tokens": str(int(concurrency * length)),
    }
    pool = pool_from_cache_config(labels)
    if int(concurrency * length):
        assert pool.single_group is True
        assert pool.blocks_per_request == need
        assert pool.max_model_len is not None
        assert abs(pool.max_model_len - length) <= 1 / concurrency + 1
