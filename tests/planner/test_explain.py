"""The arithmetic line by line: every number of the plan is in it, for every engine and kind of cache."""

from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.engines.flags import EngineFlags
from kvbudget.model.read import model_from_config
from kvbudget.planner.build import make_plan
from kvbudget.planner.explain import explain
from kvbudget.planner.hardware.gpus import gpu_named
from kvbudget.planner.request import PlanRequest
from kvbudget.planner.workload.margin import parse_margin
from kvbudget.units import GIB, Bytes

MakeRequest = Callable[..., PlanRequest]
ENGINES = ("vllm", "vllm@0.19", "sglang", "tgi", "trtllm", "llamacpp")


def lines_of(config: dict[str, Any], engine: str = "vllm", **given: Any) -> str:
    request = PlanRequest(model_from_config(config, "m"), engine, EngineFlags(max_model_len=8192), **given)
    return "\n".join(explain(make_plan(request)))


@pytest.mark.parametrize("engine", ENGINES)
def test_the_numbers_of_the_plan_are_in_it(request_of: MakeRequest, engine: str) -> None:
    plan = make_plan(request_of(gpu=gpu_named("h100"), max_model_len=8192)._replace(engine=engine))
    said = "\n".join(explain(plan))
    pool = plan.pool
    for number in (pool.num_blocks, pool.tokens, plan.ceilings.ceiling, pool.largest_max_model_len):
        assert f"{number:,}" in said
    assert f"{plan.memory.weights.bytes / GIB:.2f} GiB (computed" in said


@pytest.mark.parametrize("engine", ENGINES)
def test_a_quotient_that_is_shown_is_the_one_that_the_engine_takes(request_of: MakeRequest, engine: str) -> None:
    plan = make_plan(request_of(gpu=gpu_named("l40s"), max_model_len=8192)._replace(engine=engine))
    for line in explain(plan):
        if line.startswith("blocks: ") and " // " in line:
            words = line.replace(",", "").split()
            assert int(words[1]) // int(words[4]) == int(words[7]) == plan.pool.num_blocks
    null = any("null block" in line for line in explain(plan))
    assert null == engine.startswith("vllm")


def test_the_part_that_an_engine_does_not_take_off_is_not_hidden(request_of: MakeRequest) -> None:
    new, old = (
        "\n".join(explain(make_plan(request_of(gpu=gpu_named("h100"), max_model_len=8192)._replace(engine=engine))))
        for engine in ("vllm@0.32", "trtllm")
    )
    assert "not every part is taken off" not in new
    assert "not every part is taken off" in old  # a share of the rest


def test_a_margin_is_taken_off_where_requests_are_counted(request_of: MakeRequest) -> None:
    request = request_of(kv_cache_memory=Bytes(24 * GIB), max_model_len=8192)._replace(margin=parse_margin("287"))
    assert "(12,287 - 287 of --margin) // 512" in "\n".join(explain(make_plan(request)))


def test_real_requests_are_named_where_the_tail_is(request_of: MakeRequest) -> None:
    request = request_of(kv_cache_memory=Bytes(24 * GIB), max_model_len=8192)._replace(requests=((9, 8), (1, 15)))
    assert "at the tail of 2 real requests on average: 8 (" in "\n".join(explain(make_plan(request)))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "gemma3_text"}, ("of the last 4,096", "sliding layers", "plus 1")),
        ({"model_type": "deepseek_v3"}, ("MLA layers: a latent of 512 and 64 rotary", "taken from the class defaults")),
        ({"model_type": "mamba2"}, ("a mamba2 state in each of 64 layers, whatever the length",)),
    ],
)
def test_every_kind_of_cache_has_its_sentence(config: dict[str, Any], words: tuple[str, ...]) -> None:
    said = lines_of(config, kv_cache_memory=Bytes(60 * GIB))
    assert all(word in said for word in words), said


def test_compressed_caches_are_told_in_words() -> None:
    layers = {"num_hidden_layers": 4, "compress_ratios": [0, 4, 128, 4]}
    said = lines_of({"model_type": "deepseek_v4", **layers}, kv_cache_memory=Bytes(64 * GIB))
    assert "compressors, which make one vector of 4 tokens" in said
    assert "each 128 tokens in each of 1 compressed layers: a vector of" in said
    assert "further caches" not in said


def test_one_of_a_thing_is_told_as_one() -> None:
    config = {"model_type": "llama", "num_hidden_layers": 1, "max_position_embeddings": 8192}
    request = PlanRequest(
        model_from_config(config, "m"), "vllm", EngineFlags(max_model_len=16), kv_cache_memory=Bytes(GIB)
    )
    said = "\n".join(explain(make_plan(request)))
    assert "a group of 1 full layer, a page of 16 tokens in one layer" in said
    assert "1 block a request" in said
