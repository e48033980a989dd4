"""What the two metrics say, from Prometheus text."""

from kvbudget.edge.replay.readings import POOL_USE, PREEMPTIONS, gate_s_use, parse_samples

TEXT = """# HELP vllm:num_preemptions_total Cumulative number of preemption from the engine.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="a } b"} 3.0
vllm:num_preemptions_total{engine="1",model_name="m"} 4.0 1700000000000
vllm:num_preemptions_created{engine="0"} 1.7e9
vllm:kv_cache_usage_perc{engine="0"} 2.5e-1
vllm:kv_cache_usage_perc damaged
"""


def test_every_label_set_of_the_wanted_metrics_is_read_and_nothing_else() -> None:
    assert parse_samples(TEXT) == {PREEMPTIONS: [3.0, 4.0], POOL_USE: [0.25]}


def test_text_without_them_gives_nothing() -> None:
    assert parse_samples("<html>404</html>") == {PREEMPTIONS: [], POOL_USE: []}


def test_of_a_gate_the_use_of_the_pool_is_read() -> None:
    text = """kvbudget_pool_blocks{instance="a"} 512
kvbudget_pool_blocks{instance="b"} 512
kvbudget_held_blocks{instance="a"} 128
"""
    assert gate_s_use(text) == 0.125
    assert gate_s_use(text.replace("kvbudget_held", "kvbudget_other")) is None
    assert gate_s_use(TEXT) is None
