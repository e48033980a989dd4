"""Plans that are drawn and written: one that fits with lengths, one with windows that does not, hostile names."""

from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.engines.flags import EngineFlags
from kvbudget.model.read import model_from_config
from kvbudget.planner.build import make_plan
from kvbudget.planner.hardware.gpus import gpu_named
from kvbudget.planner.request import Plan, PlanRequest
from kvbudget.planner.workload.lengths import parse_lengths
from kvbudget.units import GIB, Bytes

MakePlan = Callable[..., Plan]
LLAMA_8B: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32, "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072,
}  # fmt: skip
WINDOWS: dict[str, Any] = {
    "model_type": "gemma3_text", "num_hidden_layers": 12, "sliding_window_pattern": 6, "sliding_window": 1024,
}  # fmt: skip


@pytest.fixture
def plan_named() -> MakePlan:
    """`plan_named("fits")`, "given", "windows", "over" or "hostile"; `name=` is what the model is called."""

    def make(kind: str, name: str = "llama-3.1-8b") -> Plan:
        lengths = parse_lengths("p50=800,p95=2k,p99=4k", "--prompt-lengths")
        flags, h100, pool = EngineFlags(max_model_len=8192), gpu_named("h100"), Bytes(6 * GIB)
        llama = model_from_config(LLAMA_8B, name)
        windows = model_from_config(WINDOWS, name)
        requests = {
            "fits": PlanRequest(llama, "vllm", flags, gpu=h100, prompt_lengths=lengths, output_lengths=lengths),
            "given": PlanRequest(llama, "vllm", flags, kv_cache_memory=pool),
            "windows": PlanRequest(windows, "vllm", EngineFlags(max_model_len=131072), kv_cache_memory=Bytes(GIB)),
            "over": PlanRequest(llama, "vllm", EngineFlags(max_model_len=512), gpu=gpu_named("t4")),
        }
        return make_plan(requests[kind])

    return make
