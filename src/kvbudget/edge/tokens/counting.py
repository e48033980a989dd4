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
from kvbudget.edge.tokens.folder import Rendering, rendering_of
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

    `chat_template`: the text of its `--chat-template`; `template_kwargs`: its `--default-chat-template-kwargs`.
    """

    chat_template: str | None = None
    template_kwargs: dict[str, object] = field(default_factory=dict)
    segment_cache_bytes: int = SEGMENT_CACHE_BYTES


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


def heed_context(counter: Counter, max_context: Tokens | None) -> None:
    """Tell a counter the engine's window, by which it refuses what cannot fit before it tokenizes it."""
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
