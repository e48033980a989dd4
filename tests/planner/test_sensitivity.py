"""One change at a time: the factors that everybody should know come out, whole-card effects included."""

from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.planner.build import make_plan
from kvbudget.planner.hardware.gpus import gpu_named
from kvbudget.planner.request import PlanRequest
from kvbudget.planner.sensitivity import Change, sensitivity
from kvbudget.units import GIB, Bytes

MakeRequest = Callable[..., PlanRequest]
POOL = Bytes(6 * GIB)


def changes_of(request: PlanRequest) -> dict[str, Change]:
    return {change.code: change for change in sensitivity(make_plan(request))}


@pytest.mark.parametrize(
    ("code", "factor"),
    [
        ("layers_double", 2), ("layers_half", 0.5), ("kv_heads_quarter", 0.25), ("kv_heads_all", 4),
        ("head_size_half", 0.5), ("head_size_double", 2), ("context_double", 2), ("context_half", 0.5),
        ("requests_double", 2), ("batch_quarter", 1), ("kv_dtype", 0.5), ("ranks_double", 0.5),
    ],
)  # fmt: skip
def test_the_memory_that_is_needed_follows_the_textbook(request_of: MakeRequest, code: str, factor: float) -> None:
    changes = changes_of(request_of({"num_key_value_heads": 8}, kv_cache_memory=POOL, max_model_len=8192))
    assert changes[code].needed == changes["plan"].needed * factor


def test_a_quarter_of_the_heads_holds_four_times_the_tokens(request_of: MakeRequest) -> None:
    changes = changes_of(request_of({"num_key_value_heads": 32}, kv_cache_memory=POOL, max_model_len=8192))
    assert changes["kv_heads_quarter"].tokens == 4 * changes["plan"].tokens
    assert (changes["kv_heads_quarter"].before, changes["kv_heads_quarter"].after) == ("32", "8")
    assert "kv_heads_all" not in changes  # they are all there already


def test_two_cards_more_than_double_the_tokens_because_the_weights_split_too(request_of: MakeRequest) -> None:
    request = request_of(gpu=gpu_named("l40s"), weights=30 * GIB, overhead=Bytes(GIB), max_model_len=8192)
    changes = changes_of(request)
    assert changes["ranks_double"].tokens > 2 * changes["plan"].tokens


def test_a_given_number_of_blocks_is_taken_as_its_bytes(request_of: MakeRequest) -> None:
    changes = changes_of(request_of(num_gpu_blocks_override=3072, max_model_len=8192))
    assert changes["plan"].tokens == 49152
    assert changes["layers_double"].tokens == 24576


def test_windows_hold_less_in_flight_with_smaller_batches(request_of: MakeRequest) -> None:
    config: dict[str, Any] = {"model_type": "gemma3_text", "num_hidden_layers": 12, "sliding_window_pattern": 6}
    changes = changes_of(request_of(config, kv_cache_memory=POOL, max_model_len=65536, max_num_batched_tokens=8192))
    assert changes["batch_quarter"].needed < changes["plan"].needed < changes["batch_double"].needed
    assert changes["context_double"].needed < 2 * changes["plan"].needed


def test_a_change_that_the_engine_would_refuse_says_why(request_of: MakeRequest) -> None:
    config = {"max_position_embeddings": 8192}
    changes = changes_of(request_of(config, kv_cache_memory=POOL, max_model_len=8192))
    assert changes["context_double"].refused == "max_model_len_beyond_model"
    assert changes["plan"].refused == ""


def test_a_card_without_room_for_the_weights_has_no_changes_of_the_model(request_of: MakeRequest) -> None:
    changes = changes_of(request_of(weights=500 * GIB, gpu=gpu_named("h100"), max_model_len=8192))
    assert "layers_double" not in changes
    assert changes["plan"].tokens == 0


def test_the_target_is_what_is_asked_for(request_of: MakeRequest) -> None:
    changes = changes_of(request_of(kv_cache_memory=POOL, max_model_len=8192, target_concurrency=4))
    assert changes["plan"].requests == 4
    assert changes["plan"].needed == 4 * GIB
