"""A model of which only the shape is known holds keys and values as any other, and its weights are not guessed."""

import pytest

from kvbudget.engines.flags import EngineFlags
from kvbudget.errors import BadValueError, UnsupportedError
from kvbudget.planner.build import make_plan
from kvbudget.planner.paper import PRECISIONS, Shape, model_of_shape
from kvbudget.planner.request import Plan, PlanRequest
from kvbudget.units import GIB, Bytes


def _plan(shape: Shape, **given: object) -> Plan:
    model, dtype = model_of_shape(shape)
    flags = EngineFlags(max_model_len=8192, block_size=16, kv_cache_dtype=dtype)
    request = PlanRequest(model=model, engine="vllm@0.32", flags=flags, kv_cache_memory=Bytes(16 * GIB))
    return make_plan(request._replace(**given))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dtype", "bytes_per_token"),
    [
        ("fp16", 32 * 8 * 128 * 2 * 2),
        ("fp8", 32 * 8 * 128 * 2),
        ("int4", 32 * 8 * (128 // 2 + 4) * 2),  # half a byte each, and a 32-bit scale for each key and value
        ("int2", 32 * 8 * (128 * 3 // 8) * 2),  # 2 bits, and 32 bits for each 32 elements
    ],
)
def test_each_precision_takes_the_bytes_that_its_format_says(dtype: str, bytes_per_token: int) -> None:
    assert _plan(Shape(32, 8, 128, dtype)).stage.layout.bytes_per_token == bytes_per_token


@pytest.mark.parametrize("kv_heads", [1, 3, 7, 8, 32, 96, 512])
def test_every_number_of_kv_heads_is_a_model(kv_heads: int) -> None:
    assert _plan(Shape(2, kv_heads, 64, "fp16")).stage.layout.bytes_per_token == 2 * kv_heads * 64 * 2 * 2


def test_weights_are_not_made_up_for_a_card() -> None:
    with pytest.raises(UnsupportedError, match="only the shape of its cache is known"):
        _plan(Shape(32, 8, 128, "fp16"), kv_cache_memory=None, gpu_memory=Bytes(80 * GIB))


def test_a_precision_that_is_none_names_those_that_are() -> None:
    with pytest.raises(BadValueError, match="'fp12' is no precision") as raised:
        model_of_shape(Shape(32, 8, 128, "fp12"))
    assert all(name in str(raised.value) for name in PRECISIONS)
