"""A plan beside what an engine reported, and what explains the difference."""

from typing import Any

import pytest

from kvbudget.engines.logs.receipt import Receipt
from kvbudget.planner.budget.receipts import compare, comparison_document
from kvbudget.units import GIB


def budget(**changed: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        "engine": {
            "name": "vllm",
            "version": "0.32",
            "block_size": 16,
            "tensor_parallel_size": 1,
            "kv_cache_dtype": "auto",
        },
        "memory": {"kv": {"bytes": 54 * GIB}, "non_torch": {"bytes": GIB // 4}, "weights": {"bytes": 16 * GIB}},
        "kv": {"groups": [{"kind": "full", "block_size": 16}]},
        "pool": {"num_blocks": 1000, "tokens": 16000},
        "capacity": {"max_model_len": 8192, "at_max_model_len": 1.953125},
    }
    return document | changed


def explained(receipt: Receipt, **changed: Any) -> dict[str, str]:
    return {found.code: found.text for found in compare(budget(**changed), receipt).explanations}


def test_equal_figures_differ_by_nothing_within_what_is_printed() -> None:
    comparison = compare(
        budget(),
        Receipt("vllm", "0.32.0", kv_bytes=54 * GIB + GIB // 200, num_blocks=1000, tokens=16000, concurrency=1.95),
    )
    assert {row.what: row.difference for row in comparison.rows if row.difference is not None} == {
        "kv": 0.0, "num_blocks": 0.0, "tokens": 0.0, "concurrency": 0.0,
    }  # fmt: skip
    assert comparison.beyond(0.0) == []
    assert comparison.explanations == ()


def test_a_difference_is_a_share_of_the_plan() -> None:
    comparison = compare(budget(), Receipt("vllm", "0.32.0", num_blocks=900))
    (row,) = comparison.beyond(0.05)
    assert row.what == "num_blocks"
    assert row.difference == pytest.approx(-0.1)


def test_what_lies_around_the_pool_decides_nothing() -> None:
    assert compare(budget(), Receipt("vllm", "0.32.0", weights_bytes=20 * GIB)).beyond(0.01) == []


def test_tokens_of_older_versions_are_compared_as_they_were_printed() -> None:
    groups = {"groups": [{"block_size": 16}] * 5}
    old = Receipt("vllm", "0.19.0", tokens=3200)
    rows = {row.what: row for row in compare(budget(kv=groups), old).rows}
    assert (rows["tokens"].plan, rows["tokens"].difference) == (3200, 0.0)  # 1,000 blocks // 5 groups x 16
    assert "(blocks // groups)" in explained(old, kv=groups)["tokens_of_older_vllm"]
    assert "tokens_of_older_vllm" in explained(old._replace(version="0.20.0"), kv=groups)
    for version in ("0.20.1", "0.20.2+cu130", "0.21.0", "0.999", "nightly"):
        assert "tokens_of_older_vllm" not in explained(old._replace(version=version), kv=groups)


def test_graphs_that_were_captured_after_sizing_are_named() -> None:
    told = explained(Receipt("vllm", "0.19.0", cuda_graphs_bytes=GIB, graphs_counted=False, kv_bytes=55 * GIB))
    assert "1.00 GiB" in told["graphs_after_the_pool"]
    assert "other_version" in told


def test_the_tightest_rank_is_named() -> None:
    assert "tightest_rank" in explained(Receipt("vllm", "0.32.0", kv_bytes=7 * GIB, kv_bytes_most=9 * GIB))


def test_memory_of_others_is_named() -> None:
    shared = explained(Receipt("vllm", "0.32.0", total_bytes=79 * GIB, free_bytes=70 * GIB, non_torch_bytes=8 * GIB))
    assert {"shared_card", "foreign_memory"} <= shared.keys()
    assert "9.00 GiB" in shared["shared_card"]


def test_blocks_that_were_asked_for_are_not_decided_by_memory() -> None:
    comparison = compare(budget(), Receipt("vllm", "0.32.0", num_blocks=1000, blocks_given=True, kv_bytes=GIB))
    assert comparison.beyond(0.01) == []
    assert "blocks_given" in {found.code for found in comparison.explanations}


def test_another_start_is_no_comparison() -> None:
    comparison = compare(budget(), Receipt("vllm", "0.32.0", flags=(("tensor_parallel_size", "2"), ("dtype", "auto"))))
    assert not comparison.same_start
    assert "tensor_parallel_size is 2 there, 1 in the plan" in comparison.explanations[0].text
    assert not compare(budget(), Receipt("sglang", tokens=5)).same_start


@pytest.mark.parametrize(
    ("told", "weights", "other"),
    [
        ("Qwen/Qwen3-8B", 15.0, True), ("Qwen/Qwen3-8B", None, True), ("/models/my-copy", 16.01, False),
        ("meta-llama/Llama-3.1-8B-Instruct", 30.0, False), ("models--meta-llama--Llama-3.1-8B", None, False),
        ("", 30.0, False),
    ],
)  # fmt: skip
def test_a_log_of_another_model_is_no_comparison(told: str, weights: float | None, other: bool) -> None:
    size = None if weights is None else int(weights * GIB)
    receipt = Receipt("vllm", "0.32.0", model=told or None, weights_bytes=size, num_blocks=1000)
    comparison = compare(budget(model={"name": "llama-3.1-8b"}), receipt)
    assert ("other_model" in [found.code for found in comparison.explanations]) == other
    assert comparison.same_start == (not other)


def test_at_another_length_concurrency_does_not_decide() -> None:
    comparison = compare(budget(), Receipt("vllm", "0.32.0", max_model_len=4096, concurrency=3.9, tokens=16000))
    assert comparison.beyond(0.01) == []


def test_it_is_plain_data() -> None:
    document = comparison_document(compare(budget(), Receipt("vllm", "0.32.0", num_blocks=900)))
    assert document["same_start"] is True
