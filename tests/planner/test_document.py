"""The JSON that programs rely on: every key of schema kvbudget.plan/1, with its type."""

import json
from collections.abc import Callable
from typing import Any

from kvbudget.planner.build import make_plan
from kvbudget.planner.document import plan_json
from kvbudget.planner.explain import explain
from kvbudget.planner.hardware.gpus import gpu_named
from kvbudget.planner.request import PlanRequest
from kvbudget.units import GIB, Bytes

MakeRequest = Callable[..., PlanRequest]
INTEGERS = {
    "engine": ("max_in_flight_tokens", "block_size"),
    "kv": ("bytes_per_token", "page_size_bytes", "bytes_per_block", "bytes_per_request"),
    "pool": ("bytes", "num_blocks", "usable_blocks", "tokens"),
    "concurrency": ("max_model_len", "largest_max_model_len", "p50", "p95", "p99", "ceiling"),
    "tail_waste": ("slots",),
}
SOURCES = {"given", "measured", "computed", "estimated"}


def check(document: dict[str, Any]) -> None:
    assert document["schema"] == "kvbudget.plan/1"
    assert set(document) == {
        "schema", "model", "engine", "kv", "memory", "pool", "concurrency", "tail_waste", "fits", "findings"
    }  # fmt: skip
    for section, names in INTEGERS.items():
        for name in names:
            assert type(document[section][name]) is int, (section, name)
    assert set(document["model"]) >= {"name", "architectures", "kinds"}
    assert set(document["memory"]) == {
        "total", "usable", "weights", "activation", "cuda_graphs", "non_torch", "kv"
    }  # fmt: skip
    for amount in document["memory"].values():
        assert type(amount["bytes"]) is int
        assert amount["source"] in SOURCES
    for group in document["kv"]["groups"]:
        assert {name: type(value) for name, value in group.items()} == {
            "kind": str, "layers": int, "block_size": int, "page_size_bytes": int, "blocks_per_request": int
        }  # fmt: skip
    assert type(document["concurrency"]["at_max_model_len"]) is float
    assert document["concurrency"]["limited_by"] in ("pool", "max_num_seqs", "state")
    assert type(document["fits"]) is bool
    for finding in document["findings"]:
        assert set(finding) == {"code", "severity", "message", "fix"}


def test_every_key_is_there_when_it_fits(request_of: MakeRequest) -> None:
    document = plan_json(make_plan(request_of(gpu=gpu_named("h100"), max_model_len=8192)))
    check(document)
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_a_block_whose_tokens_ranks_share_says_how_many(request_of: MakeRequest) -> None:
    """The page is that of one rank, the block's tokens are those of all."""
    request = request_of(gpu=gpu_named("h100"), tensor_parallel_size=16, decode_context_parallel_size=2)
    plan = make_plan(request._replace(flags=request.flags._replace(max_model_len=8192)))
    document: dict[str, Any] = plan_json(plan)
    (group,) = document["kv"]["groups"]
    assert (group["block_size"], group["sharing_ranks"], group["page_size_bytes"]) == (32, 2, 16 * 2 * 128 * 2)
    assert "a page of 32 tokens over 2 ranks in one layer is 8 KiB" in "\n".join(explain(plan))


def test_every_key_is_there_when_nothing_fits(request_of: MakeRequest) -> None:
    check(plan_json(make_plan(request_of(weights=500 * GIB, gpu=gpu_named("h100")))))


def test_every_key_is_there_when_the_pool_was_given(request_of: MakeRequest) -> None:
    check(plan_json(make_plan(request_of(kv_cache_memory=Bytes(GIB), max_model_len=1024))))


def test_the_explanation_carries_the_numbers_of_the_document(request_of: MakeRequest) -> None:
    plan = make_plan(request_of(gpu=gpu_named("h100"), tensor_parallel_size=2, max_model_len=8192))
    lines = "\n".join(explain(plan))
    for number in (plan.pool.num_blocks, plan.pool.usable_blocks, plan.pool.tokens, plan.ceilings.ceiling):
        assert f"{number:,}" in lines
    assert "8 KV heads over 2 ranks = 4" in lines
    assert "more than twice the tokens" in lines


def test_engines_beside_one_another_are_counted_and_their_ceilings_added(request_of: MakeRequest) -> None:
    one: Any = plan_json(make_plan(request_of(kv_cache_memory=Bytes(8 * GIB), max_model_len=8192)))["concurrency"]
    asked = request_of(kv_cache_memory=Bytes(8 * GIB), max_model_len=8192, data_parallel_size=3)
    three: Any = plan_json(make_plan(asked))["concurrency"]
    assert (one["engines"], three["engines"]) == (1, 3)
    assert three["ceiling"] == one["ceiling"] > 0
    assert {name: count * 3 for name, count in one["totals"].items()} == three["totals"]
    assert three["totals"]["ceiling"] == 3 * three["ceiling"]
