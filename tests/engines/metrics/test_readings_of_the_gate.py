"""What SGLang, TGI, llama.cpp and TensorRT-LLM tell, as text of a scrape; and vLLM by older names."""

import pytest

from kvbudget.edge.instances.scrape import reading_of


def test_sglang_ranks_show_the_same_and_replicas_add_up() -> None:
    text = "\n".join(
        f'sglang:{name}{{model_name="m",dp_rank="{dp}",tp_rank="{tp}"}} {value}'
        for name, values in {
            "token_usage": (0.25, 0.5), "num_running_reqs": (3, 4), "num_queue_reqs": (1, 0),
            "max_total_num_tokens": (5000, 4000), "num_grammar_queue_reqs": (1, 1),
            "num_retracted_requests_total": (2, 2),
        }.items()
        for dp, value in enumerate(values)
        for tp in range(2)
    )  # fmt: skip
    for scrape in (text, text.replace("sglang:", "sglang_")):
        reading = reading_of(scrape + "\nprocess_start_time_seconds 17.5\n")
        assert reading.engine == "sglang"
        assert reading.pool is not None
        assert (reading.pool.usable_blocks, reading.pool.block_size, reading.pool.tokens) == (4000, 1, 4000)
        assert (reading.usage, reading.running, reading.waiting, reading.deferred) == (0.5, 7, 3, 2)
        assert (reading.started, reading.progress) == (17.5, None)


def test_tgi_tells_what_it_has_reserved() -> None:
    reading = reading_of(
        "tgi_batch_current_max_tokens 3000\ntgi_batch_max_total_tokens 12000\ntgi_batch_current_size 4\n"
        "tgi_queue_size 2\ntgi_request_generated_tokens_sum 10\ntgi_request_input_length_sum 90\n"
    )
    assert reading.pool is not None
    assert (reading.engine, reading.pool.usable_blocks, reading.usage) == ("tgi", 12000, 0.25)
    assert (reading.running, reading.waiting, reading.usage_is_reserved, reading.progress) == (4, 2, True, 100)
    assert reading_of("tgi_queue_size 2\n").usage is None


def test_llamacpp_tells_no_pool() -> None:
    reading = reading_of(
        "llamacpp:requests_processing 2\nllamacpp:requests_deferred 5\nllamacpp:prompt_tokens_total 7\n"
        "llamacpp:tokens_predicted_total 8\n"
    )
    assert (reading.engine, reading.pool, reading.usage) == ("llamacpp", None, None)
    assert (reading.running, reading.waiting, reading.progress) == (2, 5, 15)


def test_tensorrt_llm_tells_blocks() -> None:
    labels = '{model_name="m",engine_type="trtllm"}'
    text = "".join(
        f"trtllm_{name}{labels} {value}\n"
        for name, value in {
            "kv_cache_max_blocks": 200, "kv_cache_tokens_per_block": 32, "kv_cache_used_blocks": 50,
            "num_requests_running": 3, "num_requests_waiting": 1, "max_num_active_requests": 64,
        }.items()
    )  # fmt: skip
    reading = reading_of(text)
    assert reading.pool is not None
    assert (reading.engine, reading.pool.usable_blocks, reading.pool.block_size) == ("trtllm", 200, 32)
    assert (reading.usage, reading.running, reading.waiting, reading.max_num_seqs) == (0.25, 3, 1, 64)
    told = reading_of(text + f"trtllm_kv_cache_utilization{labels} 0.75\n")
    assert told.usage == 0.75
    assert reading_of("trtllm_num_requests_running 1\n").pool is None


def test_an_older_vllm_is_read_by_its_own_names() -> None:
    reading = reading_of('vllm:gpu_cache_usage_perc{model_name="m"} 0.5\nvllm:num_requests_running{model_name="m"} 1\n')
    assert (reading.engine, reading.usage, reading.running, reading.pool) == ("vllm", 0.5, 1, None)


def test_data_parallel_engines_of_vllm_have_a_mean_usage_and_deferred_ones_are_counted_apart() -> None:
    reading = reading_of(
        'vllm:kv_cache_usage_perc{engine="0"} 0.5\nvllm:kv_cache_usage_perc{engine="1"} 1.0\n'
        'vllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 2\n'
        'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 5\n'
        'vllm:prompt_tokens_total{engine="0"} 5\nvllm:generation_tokens_total{engine="0"} 6\n'
    )
    assert (reading.usage, reading.deferred, reading.progress) == (0.75, 2, 11)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1.5"])
def test_a_usage_that_cannot_be_is_unknown(value: str) -> None:
    assert reading_of(f"vllm:kv_cache_usage_perc {value}\n").usage is None
    assert reading_of(f"sglang:token_usage {value}\n").usage is None


def test_an_unknown_engine_tells_nothing() -> None:
    reading = reading_of("process_start_time_seconds 5\nother 1\n")
    assert (reading.engine, reading.pool, reading.running, reading.started) == ("", None, None, 5.0)
