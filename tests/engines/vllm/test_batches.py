"""The batch, and how it follows max_model_len where no flag says it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.engines.flags import EngineFlags
from kvbudget.engines.vllm.batches import at_length
from kvbudget.engines.vllm.rule import Vllm
from kvbudget.model.read import Model, model_from_config
from kvbudget.units import GIB

MODELS = [model_from_config({"model_type": name}) for name in ("llama", "gemma3_text", "whisper", "mistral")]


@given(
    version=st.sampled_from(("0.32", "0.14", "0.7", "0.6.4", "0.5")),
    model=st.sampled_from(MODELS),
    asked=st.integers(1, 100_000),
    other=st.integers(1, 100_000),
    tokens=st.none() | st.integers(1, 50_000),
    seqs=st.none() | st.integers(1, 2000),
    chunked=st.none() | st.booleans(),
)
def test_settings_at_another_length_are_those_that_the_same_flags_give_there(
    version: str,
    model: Model,
    asked: int,
    other: int,
    tokens: int | None,
    seqs: int | None,
    chunked: bool | None,
) -> None:
    engine = Vllm(version)
    flags = EngineFlags(
        max_model_len=asked, max_num_batched_tokens=tokens, max_num_seqs=seqs, enable_chunked_prefill=chunked
    )
    moved = at_length(engine.traits, model, engine.settle(model, flags, 80 * GIB, "H100"), other)
    assert moved == engine.settle(model, flags._replace(max_model_len=other), 80 * GIB, "H100")


@pytest.mark.parametrize(
    ("length", "seqs", "batch", "in_flight"), [(1, 64, 64, 128), (100, 64, 2048, 4096), (8192, None, 2048, 4096)]
)
def test_few_short_sequences_are_a_smaller_batch(length: int, seqs: int | None, batch: int, in_flight: int) -> None:
    settings = Vllm().settle(MODELS[0], EngineFlags(max_model_len=length, max_num_seqs=seqs), 0, "")
    assert (settings.max_num_batched_tokens, settings.max_in_flight_tokens) == (batch, in_flight)


@pytest.mark.parametrize(("length", "batch"), [(1000, 2048), (20_000, 20_000), (32_768, 32_768), (32_769, 2048)])
def test_a_batch_of_0_7_takes_whole_prompts_up_to_32k(length: int, batch: int) -> None:
    settings = Vllm("0.7").settle(MODELS[0], EngineFlags(max_model_len=length), 80 * GIB, "H100")
    assert settings.max_num_batched_tokens == batch
