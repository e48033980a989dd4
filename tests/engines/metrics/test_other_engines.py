"""What the other engines tell: SGLang, TGI, llama.cpp, TensorRT-LLM, Triton, LMDeploy, Dynamo. Figures are made up."""

from collections.abc import Callable, Mapping

import pytest

from kvbudget.engines.metrics.llamacpp import with_slots
from kvbudget.engines.metrics.observation import observation_of
from kvbudget.engines.window import EngineWindow

Text = Callable[..., str]


def only(older: str | None, newer: str, seconds: float | None = 10.0) -> EngineWindow:
    (window,) = observation_of(older, newer, seconds).engines
    return window


def sglang(values: Mapping[str, tuple[float, ...]], *, priorities: bool = False) -> str:
    """Two ranks show each value of each replica; some versions show it once more for each priority."""
    lines = []
    for name, by_replica in values.items():
        for replica, value in enumerate(by_replica):
            for rank in range(2):
                labels = f'model_name="m",engine_type="unified",tp_rank="{rank}",pp_rank="0",dp_rank="{replica}"'
                if not priorities:
                    lines.append(f"sglang:{name}{{{labels}}} {value}")
                    continue
                lines.append(f'sglang:{name}{{priority="",{labels}}} {value}')
                lines.append(f'sglang:{name}{{priority="5",{labels}}} {value / 2}')
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("priorities", [False, True])
@pytest.mark.parametrize("colon", [":", "_"])
def test_sglang_s_ranks_show_the_same_and_its_replicas_add_up(priorities: bool, colon: str) -> None:
    values = {
        "token_usage": (0.2, 1.0), "num_running_reqs": (4, 6), "num_queue_reqs": (0, 8), "max_total_num_tokens": (1000,
        3000),
        "num_grammar_queue_reqs": (1, 1), "num_retracted_requests_total": (2, 4), "page_size": (16, 16),
        "max_running_requests": (64, 64), "num_retracted_input_tokens_total": (50, 100), "context_len": (4096, 4096),
        "num_retracted_output_tokens_total": (5, 10),
    }  # fmt: skip
    later = {**values, "num_retracted_requests_total": (2, 14), "num_retracted_input_tokens_total": (50, 300)}
    texts = [sglang(each, priorities=priorities).replace("sglang:", f"sglang{colon}") for each in (values, later)]
    window = only(texts[0], texts[1])
    assert (window.engine, window.where, window.model) == ("sglang", "", "m")
    last = window.last
    assert last.usage == pytest.approx(0.8)
    assert last.usage_by_rank == {"0": 0.2, "1": 1.0}
    assert (last.running, last.waiting, last.deferred) == (10, 10, 2)
    assert (window.counts.preemptions, window.counts.recomputed_tokens) == (10, 200)
    pool = window.limits.pool
    assert pool is not None
    assert (pool.tokens, pool.block_size, window.limits.max_num_seqs, window.limits.max_model_len) == (
        4000,
        16,
        128,
        4096,
    )


def test_sglang_s_evictable_tokens_are_free() -> None:
    values = {
        "token_usage": (0.95,), "max_total_num_tokens": (1000,), "kv_available_tokens": (50,),
        "kv_evictable_tokens": (700,), "num_running_reqs": (1,), "swa_token_usage": (0.0,), "full_token_usage": (0.95,),
    }  # fmt: skip
    window = only(None, sglang(values))
    assert window.last.usage == pytest.approx(0.25)
    assert window.last.usage_by_kind == {}
    assert window.extra["evictable_tokens"] == 700


def test_sglang_s_sub_pools_are_told_apart() -> None:
    values = {
        "token_usage": (1.0,), "full_token_usage": (0.06,), "swa_token_usage": (1.0,), "mamba_usage": (0.0,),
        "max_total_num_tokens": (1000,), "kv_available_tokens": (940,), "kv_evictable_tokens": (0,),
    }  # fmt: skip
    window = only(None, sglang(values))
    assert window.last.usage == 1.0
    assert window.last.usage_by_kind == {"full": 0.06, "sliding": 1.0}


def test_sglang_counts_what_is_computed_rather_than_what_is_finished() -> None:
    def text(cached: int, computed: int, decoded: int) -> str:
        modes = (("prefill_cache", cached), ("prefill_compute", computed), ("decode", decoded))
        return 'sglang:num_running_reqs{model_name="m"} 1\nsglang:prompt_tokens_total{model_name="m"} 5\n' + "".join(
            f'sglang:realtime_tokens_total{{model_name="m",mode="{mode}"}} {count}\n' for mode, count in modes
        )

    counts = only(text(10, 100, 50), text(40, 160, 90)).counts
    assert (counts.prompt_tokens, counts.prefix_queries, counts.prefix_hits, counts.generation_tokens) == (
        90,
        90,
        30,
        40,
    )


def test_sglang_s_older_names_are_read() -> None:
    text = (
        'sglang:token_usage{name="m"} 0.5\nsglang:cache_hit_rate{name="m"} '
        '37.5\nsglang:num_retracted_reqs{name="m"} 3\n'
        'sglang:cached_tokens_total{name="m"} 30\nsglang:prompt_tokens_total{name="m"} 100\n'
    )
    window = only(None, text)
    assert window.extra["cache_hit_rate"] == 0.375
    assert (window.counts.preemptions, window.counts.prefix_hits, window.counts.prefix_queries) == (3, 30, 100)
    assert len(window.notes) == 2


def test_tgi_tells_what_it_reserves_and_whom_it_refused(text: Text) -> None:
    values = {
        "tgi_batch_current_max_tokens": 9000, "tgi_batch_max_total_tokens": 12000, "tgi_batch_current_size": 4,
        "tgi_queue_size": 2, "tgi_request_success": 10,
    }  # fmt: skip
    failures = 'tgi_request_failure{err="overloaded"} 5\ntgi_request_failure{err="generation"} 2\n'
    names = (
        "tgi_request_input_length",
        "tgi_request_skipped_tokens",
        "tgi_request_queue_duration",
        "tgi_request_max_new_tokens",
    )
    older = text(values, histograms=dict.fromkeys(names, (1, 2, 3, 100)))
    window = only(older, text(values, histograms=dict.fromkeys(names, (1, 2, 5, 160))) + failures)
    assert (window.last.usage, window.last.running, window.last.waiting) == (0.75, 4, 2)
    assert (window.counts.rejected, window.counts.failed, window.counts.preemptions) == ({"overloaded": 5}, 2, 0)
    assert (window.counts.prompt_tokens, window.counts.prefix_hits) == (60, 60)
    assert window.max_tokens is not None
    assert window.queue_s is not None
    assert any("reserved" in note for note in window.notes)
    assert window.limits.pool is not None
    assert window.limits.pool.tokens == 12000


def test_llamacpp_says_that_it_tells_no_use(text: Text) -> None:
    values = {
        "llamacpp:requests_processing": 2, "llamacpp:requests_deferred": 5, "llamacpp:prompt_tokens_total": 7,
        "llamacpp:tokens_predicted_total": 8, "llamacpp:n_tokens_max": 900,
    }  # fmt: skip
    window = only(None, text(values))
    assert (window.last.usage, window.last.running, window.last.waiting, window.limits.pool) == (None, 2, 5, None)
    assert "/slots" in window.missing[0]
    old = only(None, text({**values, "llamacpp:kv_cache_usage_ratio": 0.5}))
    assert old.last.usage == 0.5
    assert not any("/slots" in line for line in old.missing)


def test_llamacpp_s_slots_tell_the_rest(text: Text) -> None:
    window = only(None, text({"llamacpp:requests_processing": 1, "llamacpp:requests_deferred": 0}))
    props: dict[str, object] = {
        "default_generation_settings": {"n_ctx": 8192}, "total_slots": 4, "build_info": "b6000-abc",
        "model_path": "/m.gguf",
    }  # fmt: skip
    slots = [
        {"id": 0, "n_ctx": 8192, "is_processing": True, "n_prompt_tokens": 2000, "next_token": {"n_decoded": 48}},
        {"id": 1, "n_ctx": 8192, "is_processing": False, "n_prompt_tokens": 500},
    ]
    told = with_slots(window, props, slots)
    assert (told.last.usage, told.limits.max_num_seqs, told.limits.max_model_len) == (0.25, 4, 8192)
    assert (told.version, told.model) == ("b6000-abc", "/m.gguf")
    assert not any("/slots" in line for line in told.missing)
    assert with_slots(window, {}, []).limits.pool is None
    assert with_slots(window, {}, ["damaged", {"n_ctx": "x", "is_processing": True}]).last.usage is None


def test_tensorrt_llm_counts_hits_in_blocks(text: Text) -> None:
    labels = 'model_name="m",engine_type="trtllm"'
    values = {
        "trtllm_kv_cache_max_blocks": 200, "trtllm_kv_cache_tokens_per_block": 32, "trtllm_kv_cache_used_blocks": 50,
        "trtllm_num_requests_running": 3, "trtllm_num_requests_waiting": 1, "trtllm_max_num_active_requests": 64,
        "trtllm_num_paused_requests": 2, "trtllm_kv_cache_reused_blocks_total": 10,
        "trtllm_kv_cache_missed_blocks_total": 20,
    }  # fmt: skip
    later = {**values, "trtllm_kv_cache_reused_blocks_total": 15, "trtllm_kv_cache_missed_blocks_total": 30}
    window = only(text(values, labels), text(later, labels))
    assert (window.last.usage, window.last.swapped, window.limits.max_num_seqs) == (0.25, 2, 64)
    assert (window.counts.prefix_hits, window.counts.prefix_queries) == (160, 480)
    assert window.limits.pool is not None
    assert (window.limits.pool.usable_blocks, window.limits.pool.block_size) == (200, 32)


def test_triton_tells_by_type() -> None:
    def line(name: str, label: str, kind: str, value: float) -> str:
        return f'nv_trt_llm_{name}{{model="tensorrt_llm",version="1",{label}="{kind}"}} {value}\n'

    blocks = "".join(
        line("kv_cache_block_metrics", "kv_cache_block_type", kind, value)
        for kind, value in (("max", 400), ("used", 100), ("free", 300), ("tokens_per", 64))
    )
    requests = "".join(
        line("request_metrics", "request_type", kind, value)
        for kind, value in (("waiting", 3), ("scheduled", 7), ("active", 9), ("max", 128))
    )
    others = (
        'nv_inference_request_success{model="tensorrt_llm",version="1"} 4\n'
        'nv_inference_request_success{model="preprocessing",version="1"} 99\n'
        'nv_inference_queue_duration_us{model="tensorrt_llm",version="1"} 8000000\n'
    )
    window = only(None, blocks + requests + others)
    assert (window.engine, window.model, window.where) == ("trtllm-triton", "tensorrt_llm", "")
    assert (window.last.usage, window.last.running, window.last.waiting) == (0.25, 7, 3)
    assert (window.limits.max_num_seqs, window.counts.finished) == (128, {"any": 4})
    assert window.extra["queue_mean_s"] == 2
    assert window.limits.pool is not None
    assert window.limits.pool.tokens == 25600


def test_lmdeploy_counts_those_that_wait_for_a_handle_as_well(text: Text) -> None:
    values = {
        "lmdeploy:gpu_cache_usage_perc": 0.5, "lmdeploy:num_requests_running": 3, "lmdeploy:num_requests_waiting": 1,
        "lmdeploy:num_api_requests_waiting": 2, "lmdeploy:prompt_tokens_total": 10,
        "lmdeploy:prefix_cache_hit_rate": 0.5,
    }  # fmt: skip
    window = only(
        None, text(values, 'model_name="m",engine="0"', {"lmdeploy:request_queue_time_seconds": (1, 2, 3, 4)})
    )
    assert (window.engine, window.last.usage, window.last.waiting) == ("lmdeploy", 0.5, 3)
    assert window.extra == {"prefix_hit_rate": 0.5, "api_waiting": 2}
    assert window.queue_s is not None


@pytest.mark.parametrize("infix", ["", "kvstats_"])
def test_dynamo_tells_shares_as_percent(infix: str) -> None:
    text = (
        f'dynamo_component_{infix}gpu_cache_usage_percent{{dp_rank="0"}} 0.4\n'
        f'dynamo_component_{infix}total_blocks{{dp_rank="0"}} 100\n'
        'dynamo_frontend_inflight_requests{model="m"} 9\ndynamo_frontend_queued_requests{model="m"} 4\n'
        'dynamo_frontend_model_kv_cache_block_size{model="m"} 16\ndynamo_frontend_model_max_num_seqs{model="m"} 256\n'
        'dynamo_frontend_model_context_length{model="m"} 8192\n'
    )
    window = only(None, text)
    assert (window.engine, window.model, window.last.usage) == ("dynamo", "m", 0.4)
    assert (window.last.running, window.last.waiting) == (5, 4)
    assert window.limits.pool is not None
    assert (window.limits.pool.tokens, window.limits.max_num_seqs, window.limits.max_model_len) == (1600, 256, 8192)


def test_what_dynamo_passes_through_is_preferred_and_gets_its_limits() -> None:
    text = (
        'vllm:kv_cache_usage_perc{model_name="m",engine="0"} '
        '0.5\nvllm:num_requests_running{model_name="m",engine="0"} 5\n'
        'dynamo_component_gpu_cache_usage_percent{dp_rank="0"} 0.013\ndynamo_frontend_queued_requests{model="m"} 4\n'
        'dynamo_frontend_inflight_requests{model="m"} 9\ndynamo_frontend_model_max_num_seqs{model="m"} 256\n'
    )
    window = only(None, text)
    assert (window.engine, window.last.usage, window.limits.max_num_seqs) == ("vllm", 0.5, 256)
    assert window.extra["dynamo_queued"] == 4


def test_the_gate_tells_each_instance_and_promises_of_all_tenants() -> None:
    def text(ok: int, full: int) -> str:
        return (
            'kvbudget_pool_blocks{instance="a"} 64\nkvbudget_pool_blocks{instance="b"} 32\n'
            'kvbudget_ledger_reserved_blocks{instance="a"} 60\nkvbudget_reserved_blocks{instance="b",tenant="x"} 5\n'
            'kvbudget_reserved_blocks{instance="b",tenant="y"} 6\nkvbudget_held_blocks{instance="a"} 20\n'
            'kvbudget_elsewhere_blocks{instance="a"} 3\nkvbudget_margin_blocks{instance="a"} 2\n'
            "kvbudget_queue_requests 7\nkvbudget_queue_tokens 9000\nkvbudget_token_drift_total 1\n"
            f'kvbudget_requests_total{{outcome="completed"}} '
            f'{ok}\nkvbudget_refusals_total{{reason="queue_full"}} {full}\n'
        )

    observation = observation_of(text(5, 1), text(15, 4), 30)
    one, two = observation.gates
    assert observation.engines == ()
    assert (one.instance, one.pool_blocks, one.promised_blocks, one.held_blocks, one.elsewhere_blocks) == (
        "a",
        64,
        60,
        20,
        3,
    )
    assert (two.instance, two.pool_blocks, two.promised_blocks, two.held_blocks) == ("b", 32, 11, None)
    assert (one.queue_requests, one.queue_tokens, one.window_s) == (7, 9000, 30)
    assert (one.outcomes, one.refusals, one.token_drift) == ({"completed": 10}, {"queue_full": 3}, 0)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1e300"])
def test_no_value_is_too_absurd(value: str) -> None:
    names = (
        "sglang:token_usage", "sglang:num_running_reqs", "sglang:max_total_num_tokens", "sglang:page_size",
        "sglang:kv_available_tokens", "sglang:kv_evictable_tokens", "sglang:context_len", "sglang:cache_hit_rate",
        "tgi_queue_size", "tgi_batch_max_total_tokens", "tgi_batch_current_max_tokens", "llamacpp:requests_processing",
        "trtllm_kv_cache_utilization", "trtllm_kv_cache_max_blocks", "trtllm_kv_cache_tokens_per_block",
        "lmdeploy:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc", "vllm:num_requests_running",
        'nv_trt_llm_request_metrics{request_type="max"}',
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per"}',
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max"}',
        'kvbudget_pool_blocks{instance="a"}',
        "dynamo_component_total_blocks", "dynamo_frontend_inflight_requests", "dynamo_frontend_model_max_num_seqs",
        "dynamo_frontend_model_kv_cache_block_size", "dynamo_frontend_model_context_length",
    )  # fmt: skip
    observation = observation_of(None, "".join(f"{name} {value}\n" for name in names))
    assert all(window.last.usage is None and window.last.running is None for window in observation.engines)
    assert len(observation.engines) == 7


def test_what_dynamo_counts_is_taken_before_a_gauge_that_two_publishers_write() -> None:
    text = (
        "dynamo_component_kvstats_active_blocks 98\ndynamo_component_kvstats_total_blocks 100\n"
        "dynamo_component_kvstats_gpu_cache_usage_percent 0.013\n"
    )
    window = only(None, text)
    assert window.last.usage == 0.98
    assert "1.3%" in window.notes[0]


def test_what_sglang_counts_while_nobody_is_there_is_its_cache() -> None:
    values = {"token_usage": (0.93,), "num_running_reqs": (0,), "num_queue_reqs": (0,), "max_total_num_tokens": (1000,)}
    assert only(None, sglang(values)).last.usage == 0
    assert only(None, sglang({**values, "num_queue_reqs": (2,)})).last.usage == 0.93
    mamba = only(None, sglang({**values, "mamba_usage": (1.0,), "num_running_reqs": (4,)}))
    assert mamba.last.usage_by_kind == {"full": 0.93, "mamba": 1.0}
