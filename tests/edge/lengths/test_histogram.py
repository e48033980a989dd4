"""Lengths from the two histograms of /metrics."""

import pytest

from kvbudget.edge.lengths.histogram import workload_from_metrics
from kvbudget.errors import BadValueError


def metrics(prompt: dict[str, float], output: dict[str, float], engines: int = 1) -> str:
    rows = []
    for name, buckets in (("request_prompt_tokens", prompt), ("request_generation_tokens", output)):
        rows.append(f"# TYPE vllm:{name} histogram")
        rows += [
            f'vllm:{name}_bucket{{engine="{engine}",le="{upper}",model_name="m"}} {count}'
            for engine in range(engines)
            for upper, count in buckets.items()
        ]
    return "\n".join(rows) + "\n"


def test_shares_of_the_buckets_come_out_as_shares_of_the_requests() -> None:
    found = workload_from_metrics(
        metrics({"100.0": 90, "1000.0": 100, "+Inf": 100}, {"10.0": 50, "20.0": 100, "+Inf": 100}, engines=2), "f"
    )
    prompts = [prompt for prompt, _ in found.requests]
    assert sum(prompt <= 100 for prompt in prompts) == 900
    assert prompts == sorted(prompts)
    assert max(prompts) <= 1000
    assert sum(output <= 10 for _, output in found.requests) == 500


def test_what_lies_above_all_bounds_is_taken_at_the_last() -> None:
    found = workload_from_metrics(metrics({"100.0": 0, "+Inf": 5}, {"10.0": 5, "+Inf": 5}), "f")
    assert {prompt for prompt, _ in found.requests} == {100}


@pytest.mark.parametrize(
    "text", ["", metrics({"1.0": 0, "+Inf": 0}, {"1.0": 0, "+Inf": 0}), "vllm:request_prompt_tokens_bucket{le= 3\n"]
)
def test_no_requests_and_damage_are_refused(text: str) -> None:
    with pytest.raises(BadValueError):
        workload_from_metrics(text, "f")


@pytest.mark.parametrize(
    "row", ['{le="NaN"} 3', '{le="10.0"} inf', '{le="10.0"} x', '{le="10.0"}', '{le="10.0 3', "{} 3"]
)
def test_a_damaged_bucket_is_named_with_its_line(row: str) -> None:
    with pytest.raises(BadValueError, match="f:1: damaged metric"):
        workload_from_metrics(f"vllm:request_prompt_tokens_bucket{row}\n", "f")
