"""A request with everything given, so that a test says only what it changes."""

from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.engines.flags import EngineFlags
from kvbudget.model.read import model_from_config
from kvbudget.planner.request import Amount, PlanRequest
from kvbudget.units import Bytes

MakeRequest = Callable[..., PlanRequest]
LLAMA_8B: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip


@pytest.fixture
def request_of() -> MakeRequest:
    """`request_of(config={...}, weights=..., max_model_len=...)`: unnamed keywords are the engine's flags."""

    def make(config: dict[str, Any] | None = None, weights: int | None = None, **given: Any) -> PlanRequest:
        own = {name: given.pop(name) for name in list(given) if name in PlanRequest._fields}
        model = model_from_config(LLAMA_8B | (config or {}), "m")
        amount = None if weights is None else Amount(Bytes(weights), "given", "--weights")
        return PlanRequest(model=model, engine="vllm@0.32", flags=EngineFlags(**given), **({"weights": amount} | own))

    return make
