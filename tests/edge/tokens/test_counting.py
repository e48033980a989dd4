import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kvbudget.edge.openai.ask import Ask
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.tokens.count import Count, Counter
from kvbudget.edge.tokens.counting import (
    CountingSettings,
    SplitCounter,
    counter_of,
    heed_context,
    state_of,
    template_kwargs_of,
    watched,
)
from kvbudget.edge.tokens.folder import Rendering, rendering_of
from kvbudget.edge.tokens.image_rules import FixedTokens, SmartResize
from kvbudget.edge.tokens.images import ImageCounter
from kvbudget.edge.tokens.tokenizer import TokenizerCounter
from kvbudget.errors import BadConfigError, BadValueError
from kvbudget.units import Tokens


async def _post(path: str, body: bytes) -> tuple[int, bytes]:
    raise AssertionError("no engine")


def _counter(name: str, settings: CountingSettings | None = None) -> ImageCounter:
    counter = counter_of(name, settings or CountingSettings(), _post)
    assert isinstance(counter, ImageCounter)
    return counter


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, tmp_path)
    return tmp_path


@pytest.mark.parametrize(("name", "told"), [("bound", "bound"), ("engine", "engine")])
def test_a_name_without_folder_counts_without_tokenizer(name: str, told: str) -> None:
    counter = _counter(name)
    assert (counter.name, counter.rule, watched(counter)) == (told, None, None)
    assert state_of(counter) == {"counts": told}


def test_a_folder_counts_itself_and_is_watched(folder: Path, chat: Callable[..., Ask]) -> None:
    counter = _counter(str(folder))
    assert isinstance(counter.count(chat("hi")), Count)
    assert state_of(counter)["engine_took_over"] is False
    assert watched(counter) is not None


def test_the_engines_own_template_and_arguments_are_used(folder: Path, chat: Callable[..., Ask]) -> None:
    settings = CountingSettings(
        chat_template="{{ shout }}", template_kwargs={"shout": "a b c d"}, segment_cache_bytes=0
    )
    said = _counter(str(folder), settings).count(chat("hi"))
    plain = _counter(str(folder), CountingSettings(chat_template="a b c d")).count(chat("hi"))
    assert said == plain


def test_a_model_whose_chats_are_rendered_in_code_asks_the_engine_for_them_alone(
    copied: Path, chat: Callable[..., Ask], completions: Callable[..., Ask]
) -> None:
    (copied / "config.json").write_text('{"architectures": ["DeepseekV32ForCausalLM"]}')
    counter = _counter(str(copied))
    assert counter.name == "tokenizer, chats by the engine"
    assert isinstance(counter.text, SplitCounter)
    assert isinstance(counter.count(completions("a")), Count)
    pending = counter.count(chat("a"))
    assert not isinstance(pending, Count)
    pending.close()  # type: ignore[attr-defined]
    heed_context(counter, Tokens(4))
    with pytest.raises(BadRequestError, match="at least"):
        counter.count(completions("a" * 4000))
    own = _counter(str(copied), CountingSettings(chat_template="x"))
    assert isinstance(own.count(chat("a")), Count)


def test_the_window_is_told_to_the_tokenizer_and_to_nobody_else(folder: Path) -> None:
    counter = _counter(str(folder))
    heed_context(counter, Tokens(7))
    own = watched(counter)
    assert own is not None
    assert isinstance(own.local, TokenizerCounter)
    assert own.local.max_context == 7
    others: list[Counter] = [_counter("bound"), _counter("engine")]
    for other in others:
        heed_context(other, Tokens(7))


def test_images_go_by_the_models_rule_unless_told_otherwise(copied: Path) -> None:
    vision = {"patch_size": 14, "spatial_merge_size": 2}
    (copied / "config.json").write_text(json.dumps({"model_type": "qwen2_vl", "vision_config": vision}))
    (copied / "preprocessor_config.json").write_text('{"min_pixels": 3136, "max_pixels": 1003520}')
    assert _counter(str(copied)).rule == SmartResize(28, 3136, 1_003_520)
    for name in ("bound", "engine", str(copied)):
        assert _counter(name, CountingSettings(image_tokens=99)).rule == FixedTokens(99)


@pytest.mark.parametrize(
    ("files", "config", "rendering"),
    [
        ((), {}, Rendering.TEMPLATE),
        ((), {"model_type": "gpt_oss"}, Rendering.HARMONY),
        ((), {"architectures": ["KimiK3ForConditionalGeneration"]}, Rendering.CODE),
        (("tekken.json",), {}, Rendering.TEMPLATE),  # the folder has both forms, and no weights in Mistral's
        (("tekken.json", "consolidated.safetensors"), {}, Rendering.MISTRAL),
        (("tokenizer.model.v3", "consolidated-00001.safetensors"), {}, Rendering.MISTRAL),
        (("consolidated.safetensors",), {}, Rendering.TEMPLATE),
    ],
)
def test_chats_are_rendered_as_the_engine_would_choose(
    copied: Path, files: tuple[str, ...], config: dict[str, object], rendering: Rendering
) -> None:
    for name in files:
        (copied / name).touch()
    (copied / "config.json").write_text(json.dumps(config))
    assert rendering_of(copied) is rendering
    (copied / "tokenizer.json").unlink()
    if any(name.startswith("te") or name.startswith("tokenizer.model") for name in files):
        assert rendering_of(copied) is Rendering.MISTRAL


def test_damaged_settings_are_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[]")
    (tmp_path / "tokenizer.json").touch()
    with pytest.raises(BadConfigError, match="JSON object"):
        _counter(str(tmp_path))
    assert template_kwargs_of('{"enable_thinking": false}') == {"enable_thinking": False}
    for text in ("{", "[]", "5"):
        with pytest.raises(BadValueError, match="--default-chat-template-kwargs"):
            template_kwargs_of(text)
