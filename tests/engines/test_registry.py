"""Which rule a name means."""

import pytest

from kvbudget.engines.registry import DEFAULT_ENGINE, NAMES, engine_named
from kvbudget.errors import UnsupportedError


@pytest.mark.parametrize("name", NAMES)
def test_every_engine_is_found_by_its_bare_name(name: str) -> None:
    engine = engine_named(name)
    assert engine.name == name
    assert engine.version


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("sglang@0.5.9", "sglang", "0.5.9"),
        ("tgi@3.3.7", "tgi", "3.3.7"),
        ("trtllm@1.0.0", "trtllm", "1.0.0"),
        ("tensorrt-llm@0.21", "trtllm", "0.21"),
        ("llamacpp@b9000", "llamacpp", "b9000"),
        ("llama.cpp@9000", "llamacpp", "9000"),
    ],
)
def test_other_engines_are_found_by_name_and_version(text: str, name: str, version: str) -> None:
    assert (engine_named(text).name, engine_named(text).version) == (name, version)


def test_the_default_is_the_newest_vllm_that_is_known() -> None:
    assert (engine_named(DEFAULT_ENGINE).name, engine_named(DEFAULT_ENGINE).version) == ("vllm", "0.32")


@pytest.mark.parametrize("name", ["", "nope", "VLLM", "vllm-0.32", "sglang 0.5", "@0.32"])
def test_other_names_are_refused_with_those_that_are_known(name: str) -> None:
    with pytest.raises(UnsupportedError, match="vllm, sglang, tgi, trtllm, llamacpp"):
        engine_named(name)
