"""The weights of a draft: on the last stage, split as the target is, without what it takes from the target."""

from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.engines.flags import Speculation
from kvbudget.model.drafts import MedusaHeads
from kvbudget.model.read import model_from_config
from kvbudget.planner.build import make_plan
from kvbudget.planner.hardware.gpus import gpu_named
from kvbudget.planner.request import Amount, Memory, PlanRequest
from kvbudget.units import GIB, Bytes

MakeRequest = Callable[..., PlanRequest]
ONE_LAYER: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip
TABLE = 128256 * 4096 * 2  # embedding or head, in bytes
ROTARY = 32 * 2**20
LAYER = 218_112_000 * 2


def memory(request_of: MakeRequest, method: str, *, pp: int = 1, tp: int = 1, **more: Any) -> Memory:
    speculation = Speculation(method, 3, model_from_config(ONE_LAYER, "draft")) if method else None
    request = request_of(
        gpu=gpu_named("h100"), max_model_len=8192, speculation=speculation, pipeline_parallel_size=pp,
        tensor_parallel_size=tp, **more,
    )  # fmt: skip
    return make_plan(request).memory


@pytest.mark.parametrize(("method", "tables"), [("draft_model", 2), ("eagle3", 1), ("eagle", 0)])
def test_a_draft_costs_what_it_does_not_take_from_its_target(request_of: MakeRequest, method: str, tables: int) -> None:
    more = memory(request_of, method).weights.bytes - memory(request_of, "").weights.bytes
    assert more == pytest.approx(LAYER + ROTARY + tables * TABLE, abs=2**17)
    assert "of the draft draft" in memory(request_of, method).weights.note


def test_a_draft_is_split_over_the_ranks(request_of: MakeRequest) -> None:
    more = memory(request_of, "draft_model", tp=2).weights.bytes - memory(request_of, "", tp=2).weights.bytes
    assert more == pytest.approx((LAYER + 2 * TABLE) / 2 + ROTARY, abs=2**17)


def test_the_draft_is_on_the_last_stage_alone_and_has_an_embedding_of_its_own_there(request_of: MakeRequest) -> None:
    request = request_of(
        gpu=gpu_named("h100"), max_model_len=8192, pipeline_parallel_size=2,
        speculation=Speculation("eagle", 3, model_from_config(ONE_LAYER, "draft")),
    )  # fmt: skip
    plan = make_plan(request)
    assert plan.stage.first == 16
    alone = memory(request_of, "", pp=2).weights.bytes
    assert plan.memory.weights.bytes - alone == pytest.approx(LAYER + ROTARY + TABLE, abs=2**17)


def test_files_of_the_draft_are_measured_and_a_sum_is_as_certain_as_its_parts(request_of: MakeRequest) -> None:
    measured = Amount(Bytes(GIB), "measured", "1 safetensors file(s)")
    found = memory(request_of, "eagle3", weights=16 * GIB, draft_weights=measured).weights
    assert (found.bytes, found.source) == (17 * GIB + ROTARY, "measured")
    assert memory(request_of, "eagle3", weights=16 * GIB).weights.source == "computed"
    assert memory(request_of, "", weights=16 * GIB).weights.source == "given"


def test_the_module_that_is_built_in_is_loaded_when_it_is_asked_for(request_of: MakeRequest) -> None:
    config = ONE_LAYER | {
        "model_type": "mimo", "num_hidden_layers": 36, "num_nextn_predict_layers": 1, "intermediate_size": 11008,
        "vocab_size": 151680,
    }  # fmt: skip
    without, module = (
        make_plan(request_of(config=config, gpu=gpu_named("h100"), max_model_len=8192, speculation=asked)).memory
        for asked in (None, Speculation("mtp", 1))
    )
    assert module.weights.bytes > without.weights.bytes
    assert "draft module (MTP)" in module.weights.note
    assert module.kv.bytes < without.kv.bytes


def test_a_method_without_a_model_costs_no_weights(request_of: MakeRequest) -> None:
    request = request_of(gpu=gpu_named("h100"), max_model_len=8192, speculation=Speculation("ngram", 3))
    assert make_plan(request).memory.weights == memory(request_of, "").weights


@pytest.mark.parametrize("tp", [1, 4])
def test_medusa_s_blocks_are_whole_on_every_rank_and_its_output_heads_are_split(
    request_of: MakeRequest, tp: int
) -> None:
    """vLLM 0.32 models/medusa.py builds as many as it speculates, whatever the file holds."""
    heads = MedusaHeads(5, 1, 4096, 0, shared=False, biased=False)
    asked = Speculation("medusa", 3, model="d", heads=heads)
    given: dict[str, Any] = {"gpu": gpu_named("h100"), "max_model_len": 8192, "tensor_parallel_size": tp}
    found = make_plan(request_of(speculation=asked, **given)).memory.weights
    without = make_plan(request_of(**given)).memory.weights
    assert found.bytes - without.bytes == 3 * (4096 * 4096 * 2 + TABLE // tp)
    assert "3 Medusa heads" in found.note
    stored = Amount(Bytes(5 * (4096 * 4096 * 2 + TABLE)), "measured", "1 safetensors file(s)")
    measured = make_plan(request_of(speculation=asked, draft_weights=stored, **given)).memory.weights
    assert measured.bytes == found.bytes


def test_a_class_of_one_s_own_is_told_to_be_uncounted(request_of: MakeRequest) -> None:
    asked = Speculation("custom_class", 3, model="my.module.Proposer")
    for given, expected in (({"gpu": gpu_named("h100")}, 1), ({"kv_cache_memory": Bytes(GIB)}, 0)):
        found = make_plan(request_of(max_model_len=2048, speculation=asked, **given)).findings
        assert [finding.code for finding in found].count("draft_uncounted") == expected
