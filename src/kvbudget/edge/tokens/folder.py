"""What a model folder says of its chats: which renderer vLLM 0.32 would choose for it, and with which template.

vLLM renders most models by their Jinja template, gpt-oss by harmony, folders in Mistral's own form by mistral-common,
and a few families by code of their own, which is not reproduced here.
"""

import json
from enum import Enum
from pathlib import Path
from typing import cast

from kvbudget.edge.tokens.harmony import HarmonyFormat
from kvbudget.edge.tokens.rendering import Clock, Renderer
from kvbudget.edge.tokens.template import ChatTemplate
from kvbudget.errors import BadConfigError

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_HARMONY_MODEL = "gpt_oss"
# vLLM 0.32 config/model.py: architectures with a renderer in code.
CODE_RENDERED = frozenset((
    "DeepseekV32ForCausalLM", "DeepseekV4ForCausalLM", "DeepseekV4ForConditionalGeneration", "DeepseekV41ForCausalLM",
    "InklingForCausalLM", "InklingForConditionalGeneration", "KimiK3ForConditionalGeneration",
))  # fmt: skip


class Rendering(Enum):
    """How the engine makes a prompt of a chat."""

    TEMPLATE = "template"
    HARMONY = "harmony"
    MISTRAL = "mistral"
    CODE = "code"


def rendering_of(folder: Path) -> Rendering:
    """Which one vLLM 0.32 would take with `--tokenizer-mode auto`. Raises BadConfigError for a damaged config.json."""
    if any(folder.glob("consolidated*.safetensors")) and mistral_file(folder) is not None:
        return Rendering.MISTRAL
    if not (folder / "tokenizer.json").is_file() and mistral_file(folder) is not None:
        return Rendering.MISTRAL
    config = json_object(folder / "config.json")
    if config.get("model_type") == _HARMONY_MODEL:
        return Rendering.HARMONY
    architectures = config.get("architectures")
    named = set(architectures) if isinstance(architectures, list) else set()
    return Rendering.TEMPLATE if CODE_RENDERED.isdisjoint(named) else Rendering.CODE


def mistral_file(folder: Path) -> Path | None:
    """tekken.json or the newest SentencePiece model that says its version; None when there is neither."""
    tekken = folder / "tekken.json"
    if tekken.is_file():
        return tekken
    versions = sorted(folder.glob("tokenizer.model.v*"))
    return versions[-1] if versions else None


def renderers_of(folder: Path, config: dict[str, object], now: Clock, chat_template: str | None) -> dict[str, Renderer]:
    """By name: `default`, and `tool_use` where a folder has one. Empty when it has no template.

    `config` is its tokenizer_config.json; `chat_template` replaces its own. Raises BadConfigError.
    """
    if rendering_of(folder) is Rendering.HARMONY and chat_template is None:
        return {"default": HarmonyFormat(now)}
    sources = {"default": chat_template} if chat_template is not None else _template_sources(folder, config)
    special_tokens = _special_tokens(config, folder)
    return {name: ChatTemplate(source, special_tokens, now) for name, source in sources.items()}


def told_renderers(renderers: dict[str, Renderer]) -> str:
    """A line for the operator."""
    if not renderers:
        return "no chat template found: chat requests will be refused"
    if isinstance(renderers.get("default"), HarmonyFormat):
        return "chats are rendered in the harmony format of gpt-oss"
    formats = ", ".join(f"{name} ({'parts' if each.parts else 'string'})" for name, each in renderers.items())
    return f"chat template: {formats}"


def _template_sources(folder: Path, config: dict[str, object]) -> dict[str, str]:
    """Where transformers 5 looks: chat_template.jinja and additional_chat_templates/, then the configuration files."""
    file = folder / "chat_template.jinja"
    named = {path.stem: text_of(path) for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if file.is_file():
        named["default"] = text_of(file)
    if named:
        return named
    given = config.get("chat_template")
    if given is None:
        given = json_object(folder / "chat_template.json").get("chat_template")
    if isinstance(given, str):
        return {"default": given}
    if isinstance(given, list):
        given = {entry.get("name"): entry.get("template") for entry in given if isinstance(entry, dict)}
    if isinstance(given, dict) and all(isinstance(item, str) for pair in given.items() for item in pair):
        return cast("dict[str, str]", given)
    if given is not None:
        raise BadConfigError(f"{folder}: chat_template must be a string or a list of named templates")
    return {}


def _special_tokens(config: dict[str, object], folder: Path) -> dict[str, str]:
    """`bos_token` and the like, as templates name them: strings, or objects with `content`."""
    tokens: dict[str, str] = {}
    older = json_object(folder / "special_tokens_map.json")
    for name in _SPECIAL_TOKENS:
        value = config.get(name, older.get(name))
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            tokens[name] = value
    return tokens


def text_of(file: Path) -> str:
    """The file's text. Raises BadConfigError."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfigError(f"{file} cannot be read: {error}") from error


def json_object(file: Path) -> dict[str, object]:
    """Empty when the file is not there. Raises BadConfigError when it is damaged."""
    if not file.is_file():
        return {}
    try:
        value = json.loads(text_of(file))
    except (ValueError, RecursionError) as error:
        raise BadConfigError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadConfigError(f"{file} must hold a JSON object")
    return value
