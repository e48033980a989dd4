from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kvbudget.edge.engine.metrics import EngineMetrics
from kvbudget.edge.engine.replies import Reply, Sequence
from kvbudget.edge.engine.settings import EngineSettings
from kvbudget.simulate.paged_engine import FinishReason, PagedEngine

SETTINGS = EngineSettings(num_blocks=65, block_size=32, max_model_len=1024, served_model_name="tiny")


def samples(metrics: EngineMetrics) -> dict[str, float]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    found = {}
    for family in families:
        for sample in family.samples:
            assert sample.labels["engine"] == "0"
            labels = {k: v for k, v in sample.labels.items() if k in ("le", "finished_reason", "reason")}
            found[sample.name + "".join(f"[{value}]" for value in labels.values())] = sample.value
    return found


def fresh() -> tuple[PagedEngine, EngineMetrics]:
    engine = PagedEngine(SETTINGS.layout, 65, 256, 2048, 1024)
    return engine, EngineMetrics(engine, SETTINGS)


def test_pool_facts_are_reported_with_the_null_block_counted_in_as_the_engine_does() -> None:
    _, metrics = fresh()
    (family,) = [each for each in metrics.collect() if each.name == "vllm:cache_config_info"]
    labels = family.samples[0].labels
    assert labels["num_gpu_blocks"] == "65"
    assert labels["block_size"] == "32"
    assert labels["kv_cache_size_tokens"] == "2080"
    assert labels["kv_cache_max_concurrency"] == "2.03125"
    assert family.samples[0].value == 1


def test_gauges_and_counters_are_the_engines_own() -> None:
    engine, metrics = fresh()
    engine.add("a", 1000, 10)
    engine.add("b", 1000, 10)
    engine.add("c", 1000, 10)
    engine.step()
    seen = samples(metrics)
    assert seen["vllm:num_requests_running"] == 2
    assert seen["vllm:num_requests_waiting"] == seen["vllm:num_requests_waiting_by_reason[capacity]"] == 1
    assert seen["vllm:kv_cache_usage_perc"] == 1.0
    assert seen["vllm:prompt_tokens_total"] == 2000
    assert seen["vllm:generation_tokens_total"] == 2
    assert seen["vllm:num_preemptions_total"] == 0


def test_times_of_a_finished_sequence_go_to_their_histograms() -> None:
    _, metrics = fresh()
    sequence = Sequence("1", 0, Reply(every_token=True), 100, 10.0)
    sequence.scheduled_at, sequence.first_token_at, sequence.last_token_at, sequence.tokens = 11.0, 13.0, 17.0, 5
    metrics.step(100)
    metrics.first_token(3.0)
    metrics.next_token(0.025)
    metrics.finished(FinishReason.STOP, sequence)
    seen = samples(metrics)
    assert seen["vllm:request_success_total[stop]"] == 1
    assert seen["vllm:e2e_request_latency_seconds_sum"] == 7
    assert seen["vllm:request_queue_time_seconds_sum"] == 1
    assert seen["vllm:request_prefill_time_seconds_sum"] == 2
    assert seen["vllm:request_decode_time_seconds_sum"] == 4
    assert seen["vllm:request_inference_time_seconds_sum"] == 6
    assert seen["vllm:request_time_per_output_token_seconds_sum"] == 1
    assert seen["vllm:request_prompt_tokens_bucket[100.0]"] == 1
    assert seen["vllm:request_prompt_tokens_bucket[50.0]"] == 0
    assert seen["vllm:inter_token_latency_seconds_bucket[0.025]"] == 1
    assert seen["vllm:inter_token_latency_seconds_bucket[0.01]"] == 0
    assert seen["vllm:time_to_first_token_seconds_bucket[+Inf]"] == 1
    assert seen["vllm:iteration_tokens_total_sum"] == 100
