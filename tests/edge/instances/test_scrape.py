import pytest

from kvbudget.edge.instances.scrape import reading_of
from kvbudget.errors import InputError

LABELS = 'block_size="32",num_gpu_blocks="65",kv_cache_size_tokens="2080",kv_cache_max_concurrency="2.03125",engine="0"'
TEXT = f"""# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{{LABELS}}} 1.0
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.25
vllm:num_requests_running{{engine="0",model_name="m"}} 3.0
vllm:num_requests_waiting{{engine="0",model_name="m"}} 2.0
vllm:num_requests_waiting_by_reason{{engine="0",model_name="m",reason="capacity"}} 2.0
vllm:num_preemptions_total{{engine="0",model_name="m"}} 7.0
vllm:num_preemptions_created{{engine="0",model_name="m"}} 1.7e+09
other_metric garbage that no parser takes
"""


def test_the_pool_and_the_load_are_read() -> None:
    reading = reading_of(TEXT)
    assert reading.pool is not None
    assert (reading.pool.num_blocks, reading.pool.usable_blocks, reading.pool.block_size) == (65, 64, 32)
    assert (reading.usage, reading.running, reading.waiting, reading.preemptions) == (0.25, 3, 2, 7)


def test_what_is_not_exported_is_unknown_not_zero() -> None:
    reading = reading_of("# nothing here\n")
    assert (reading.pool, reading.usage, reading.running, reading.preemptions) == (None, None, None, None)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-5", "1e308"])
def test_numbers_that_are_none_are_unknown(value: str) -> None:
    reading = reading_of(TEXT.replace("0.25", value).replace(" 3.0", f" {value}").replace(" 7.0", f" {value}"))
    assert (reading.usage, reading.running, reading.preemptions, reading.waiting) == (None, None, None, 2)


def test_a_damaged_wanted_line_is_an_error() -> None:
    with pytest.raises((ValueError, InputError)):
        reading_of('vllm:kv_cache_usage_perc{engine="0" 0.25')


def test_engines_behind_one_port_do_not_use_one_another_s_blocks() -> None:
    told = TEXT.replace(LABELS, LABELS + ',enable_prefix_caching="True"')
    one = reading_of(told).pool
    second = told.splitlines()[2].replace('engine="0"', 'engine="1"')
    two = reading_of(f"{told}{second}\n").pool
    assert one is not None
    assert two is not None
    assert (one.prefix_caching, two.prefix_caching) == (True, False)


def test_the_pool_of_data_parallel_engines_has_a_null_block_for_each() -> None:
    both = TEXT.replace('num_gpu_blocks="65"', 'num_gpu_blocks="130"')
    second = both.splitlines()[2].replace('engine="0"', 'engine="1"')
    pool = reading_of(f"{both}{second}\n").pool
    assert pool is not None
    assert (pool.num_blocks, pool.usable_blocks, pool.blocks_per_request, pool.max_model_len) == (130, 128, 32, 1024)
    assert pool.single_group


def test_an_engine_that_speculates_is_not_credited_what_it_computes_again() -> None:
    told = TEXT.replace(LABELS, LABELS + ',enable_prefix_caching="True"')
    pool = reading_of(f'{told}vllm:spec_decode_num_drafts_total{{engine="0"}} 0.0\n').pool
    assert pool is not None
    assert pool.prefix_caching is False
