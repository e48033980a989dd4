"""What would make an engine start: every word of the advice is followed, and then it does."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbudget.engines.flags import EngineFlags
from kvbudget.model.read import Model, model_from_config
from kvbudget.planner.build import make_plan
from kvbudget.planner.hardware.gpus import gpu_named
from kvbudget.planner.request import Amount, PlanRequest
from kvbudget.units import GIB, Bytes

MakeRequest = Callable[..., PlanRequest]
CONFIG: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 28672,
    "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip
CODES = ("no_kv_memory", "below_target_concurrency")


def llama_cpp(model: Model, card: str, **given: Any) -> PlanRequest:
    own = {name: given.pop(name) for name in list(given) if name in PlanRequest._fields}
    return PlanRequest(model=model, engine="llamacpp", flags=EngineFlags(**given), gpu=gpu_named(card), **own)


def fix_of(request: PlanRequest) -> str:
    return next((found.fix for found in make_plan(request).findings if found.code in CODES), "")


def pieces_of(fix: str) -> list[str]:
    """The ways that are told, one by one."""
    return [piece for part in fix.removeprefix("use ").split("; or ") for piece in part.split(", or ") if piece]


def followed(request: PlanRequest, piece: str) -> PlanRequest:
    """The request with the flags that a piece of advice names."""
    words = [word.strip("(),:") for word in piece.split()]
    changes: dict[str, Any] = {}
    for word, value in zip(words, [*words[1:], ""], strict=True):
        if word in ("--ctx-size", "--parallel", "--n-gpu-layers", "--pipeline-parallel-size"):
            field = {"--ctx-size": "max_model_len", "--parallel": "max_num_seqs", "--n-gpu-layers": "gpu_layers",
                     "--pipeline-parallel-size": "pipeline_parallel_size"}[word]  # fmt: skip
            changes[field] = int(value)
        elif word in ("--cache-type-k", "--cache-type-v"):
            changes["kv_cache_dtype" if word.endswith("k") else "value_cache_dtype"] = value
        elif word == "--no-kv-unified":
            changes["kv_unified"] = False
        elif word == "--tensor-split":
            changes["tensor_split"] = None
    gpus = changes.get("pipeline_parallel_size", request.gpus)
    return request._replace(flags=request.flags._replace(**changes), gpus=gpus)


@pytest.mark.parametrize("given", [{}, {"pipeline_parallel_size": 2, "gpus": 4}, {"gpu_layers": 60}])
def test_a_model_larger_than_the_card_is_told_how_many_layers_and_cards(given: dict[str, Any]) -> None:
    """llama.cpp splits no matrices, so ranks are never tried."""
    request = llama_cpp(model_from_config(CONFIG, "m"), "rtx-4090", max_model_len=8192, **given)
    plan = make_plan(request)
    assert not plan.fits
    fix = fix_of(request)
    assert "--n-gpu-layers" in fix
    assert " cards (kvbudget plan --gpus " in fix
    assert "tensor-parallel" not in fix
    for piece in pieces_of(fix)[:-1]:
        assert make_plan(followed(request, piece)).fits, piece
    assert pieces_of(fix)[-1] == "quantise the weights"


def test_one_layer_more_or_a_card_fewer_would_not_do() -> None:
    request = llama_cpp(model_from_config(CONFIG, "m"), "rtx-4090", max_model_len=8192)
    layers, cards, _ = (followed(request, piece) for piece in pieces_of(fix_of(request)))
    assert layers.flags.gpu_layers is not None
    more = layers.flags._replace(gpu_layers=layers.flags.gpu_layers + 1)
    fewer = cards.flags._replace(pipeline_parallel_size=cards.flags.pipeline_parallel_size - 1)
    for flags in (more, fewer):
        assert not make_plan(request._replace(flags=flags)).fits


@settings(deadline=None)  # some plans try sixty-four numbers of cards
@given(
    layers=st.integers(1, 40),
    card=st.sampled_from(["rtx-4090", "l4", "rtx-4070", "h100"]),
    context=st.sampled_from([None, 512, 8192, 100_000, 600_000, 5_000_000]),
    slots=st.sampled_from([None, 1, 3, 16, 256]),
    unified=st.sampled_from([None, True, False]),
    cards=st.integers(1, 4),
    on_cards=st.sampled_from([None, 0, 1, 7, 99]),
    split=st.sampled_from([None, (3.0, 1.0), (1.0, 0.0)]),
    window=st.sampled_from([None, 1024]),
    weights=st.sampled_from([None, 1, 30, 200]),
    target=st.sampled_from([None, 2, 40, 300]),
)
def test_advice_that_is_followed_fits(
    layers: int,
    card: str,
    context: int | None,
    slots: int | None,
    unified: bool | None,
    cards: int,
    on_cards: int | None,
    split: tuple[float, ...] | None,
    window: int | None,
    weights: int | None,
    target: int | None,
) -> None:
    more: dict[str, Any] = {"num_hidden_layers": layers}
    if window:
        more |= {
            "model_type": "gemma3_text", "sliding_window": window, "head_dim": 128,
            "layer_types": ["full_attention" if at % 6 == 5 else "sliding_attention" for at in range(layers)],
        }  # fmt: skip
    request = llama_cpp(
        model_from_config(CONFIG | more, "m"), card, max_model_len=context, max_num_seqs=slots, kv_unified=unified,
        pipeline_parallel_size=cards, gpus=cards, gpu_layers=on_cards, tensor_split=split, target_concurrency=target,
        weights=None if weights is None else Amount(Bytes(weights * GIB), "given", "--weights"),
    )  # fmt: skip
    plan = make_plan(request)
    fix = fix_of(request)
    assert bool(fix) is not plan.fits
    codes = {found.code for found in plan.findings if found.severity == "error"}
    for piece in pieces_of(fix):
        if piece.startswith(("quantise", "more servers", "take larger")):
            continue
        left = {f.code for f in make_plan(followed(request, piece)).findings if f.severity == "error"}
        allowed = {"below_target_concurrency"} if "no_kv_memory" in codes or "long enough" in piece else set()
        assert left <= allowed, (piece, left)


@pytest.mark.parametrize("engine", ["vllm@0.32", "sglang", "tgi", "trtllm"])
def test_ranks_that_an_engine_does_not_take_are_no_error(engine: str) -> None:
    """Seven heads: no power of two divides them."""
    odd = CONFIG | {"num_attention_heads": 56, "num_key_value_heads": 7, "head_dim": 128}
    plan = make_plan(
        PlanRequest(
            model=model_from_config(odd, "m"), engine=engine, flags=EngineFlags(max_model_len=8192),
            gpu=gpu_named("rtx-4090"),
        )
    )  # fmt: skip
    assert not plan.fits


def test_more_slots_than_a_server_has_are_more_servers() -> None:
    request = llama_cpp(model_from_config(CONFIG | {"num_hidden_layers": 4}, "m"), "h100", max_model_len=8192)
    assert "more servers" in fix_of(request._replace(target_concurrency=257))


def test_layers_that_no_card_holds_are_told() -> None:
    model = model_from_config(CONFIG | {"num_hidden_layers": 8}, "m")
    for flags, said in (
        ({"gpu_layers": 0}, "8 of 8 layers"),
        ({"gpu_layers": 1}, "8 of 8 layers"),
        ({"gpu_layers": 5}, "4 of 8 layers"),
        ({"kv_offload": False}, "--no-kv-offload"),
    ):
        plan = make_plan(llama_cpp(model, "h100", max_model_len=8192, **flags))
        assert plan.fits
        assert [said in f.message for f in plan.findings if f.code == "layers_off_the_cards"] == [True]
    assert make_plan(llama_cpp(model, "h100", max_model_len=8192, gpu_layers=9)).findings == ()
