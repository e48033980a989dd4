"""Which counter serves: by what `--tokenizer` names, and by how the engine renders the chats of that model."""

import json
import logging
from collections.abc import Awaitable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from kvbudget.edge.openai.ask import Ask, ChatPrompt
from kvbudget.edge.tokens.bound import ThreadedBoundCounter
from kvbudget.edge.tokens.count import Count, Counter
from kvbudget.edge.tokens.engine import EngineCounter, Post
from kvbudget.edge.tokens.folder import Rendering, json_object, rendering_of
from kvbudget.edge.tokens.image_rules import FixedTokens, ImageRule, image_rule_of
from kvbudget.edge.tokens.images import ImageCounter
from kvbudget.edge.tokens.rendering import Clock
from kvbudget.edge.tokens.takeover import WatchedCounter
from kvbudget.edge.tokens.tokenizer import TokenizerCounter
from kvbudget.edge.tokens.vocabulary import SEGMENT_CACHE_BYTES
from kvbudget.errors import BadValueError
from kvbudget.units import Tokens

log = logging.getLogger("kvbudget.tokens")


@dataclass(frozen=True, slots=True)
class CountingSettings:
    """How the engine was started, as far as counts depend on it; and what a tokenizer here may keep.

    `chat_template`: the text of its `--chat-template`; `template_kwargs`: its `--default-chat-template-kwargs`;
    `image_tokens`: the most that an image takes, in place of the model's own rule; `forward_token_ids`: prompts of
    /v1/completions go on as the ids that they were counted by.
    """

    chat_template: str | None = None
    template_kwargs: dict[str, object] = field(default_factory=dict)
    segment_cache_bytes: int = SEGMENT_CACHE_BYTES
    image_tokens: int | None = None
    forward_token_ids: bool = False


class SplitCounter:
    """Chats by one counter, everything else by another."""

    def __init__(self, chats: Counter, others: Counter) -> None:
        self.chats = chats
        self.others = others
        self.name = f"{others.name}, chats by the {chats.name}"

    def count(self, ask: Ask) -> Count | Awaitable[Count]:
        """As the one whose turn it is."""
        return (self.chats if isinstance(ask.prompt, ChatPrompt) else self.others).count(ask)


def counter_of(name: str, settings: CountingSettings, post: Post, *, now: Clock = datetime.now) -> Counter:
    """The counter, loaded: takes seconds for a model folder.

    `name`: a folder, `engine` or `bound`; `post` reaches the engine. Raises BadConfigError.
    """
    text = _text_counter(name, settings, post, now)
    return ImageCounter(text, _image_rule(None if name in ("bound", "engine") else Path(name), settings.image_tokens))


def _image_rule(folder: Path | None, told: int | None) -> ImageRule | None:
    if told is not None:
        return FixedTokens(told)
    if folder is None:
        return None
    processor = json_object(folder / "preprocessor_config.json")
    rule = image_rule_of(json_object(folder / "config.json"), processor)
    if rule is not None:
        log.info("%s: images take %s", folder, rule.told)
    return rule


def _text_counter(name: str, settings: CountingSettings, post: Post, now: Clock) -> Counter:
    if name == "bound":
        return ThreadedBoundCounter()
    if name == "engine":
        return EngineCounter(post)
    folder = Path(name)
    rendering = rendering_of(folder)
    if rendering is Rendering.MISTRAL:
        from kvbudget.edge.tokens.mistral import MistralCounter

        return WatchedCounter(MistralCounter.load(folder), EngineCounter(post))
    tokenizer = TokenizerCounter.load(
        folder,
        now=now,
        chat_template=settings.chat_template,
        default_template_kwargs=settings.template_kwargs,
        segment_cache_bytes=settings.segment_cache_bytes,
    )
    for note in tokenizer.notes:
        log.info("%s: %s", folder, note)
    if rendering is Rendering.CODE and settings.chat_template is None:
        log.info("%s: vLLM renders the chats of this model in code: its own /tokenize counts them", folder)
        return SplitCounter(EngineCounter(post), tokenizer)
    # /tokenize renders gpt-oss by the template of its folder, and chats of it are not rendered so.
    return WatchedCounter(tokenizer, EngineCounter(post, render=rendering is Rendering.HARMONY))


def watched(counter: Counter) -> WatchedCounter | None:
    """The one whose counts are to be compared with the engine's; None where the engine counts anyway."""
    inner = counter.text if isinstance(counter, ImageCounter) else counter
    return inner if isinstance(inner, WatchedCounter) else None


def state_of(counter: Counter) -> dict[str, object]:
    """For the state page: who counts prompts; and how often the engine agreed, where that is watched."""
    own = watched(counter)
    return {"counts": counter.name} if own is None else own.state()


def heed_context(counter: Counter, max_context: Tokens | None) -> None:
    """Tell a counter the engine's window, by which it refuses what cannot fit before it tokenizes it."""
    if isinstance(counter, ImageCounter):
        counter = counter.text
    if isinstance(counter, WatchedCounter):
        counter = counter.local
    if isinstance(counter, SplitCounter):
        counter = counter.others
    if isinstance(counter, TokenizerCounter):
        counter.max_context = max_context


def template_kwargs_of(text: str) -> dict[str, object]:
    """`--default-chat-template-kwargs` as vLLM takes it: a JSON object. Raises BadValueError."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadValueError(
            f"--default-chat-template-kwargs is not JSON: {error}", fix="give the object that the engine was given"
        ) from None
    if not isinstance(value, dict):
        raise BadValueError(
            f"--default-chat-template-kwargs must be a JSON object, got {text[:60]!r}",
            fix='for example {"enable_thinking": false}',
        )
    return value
