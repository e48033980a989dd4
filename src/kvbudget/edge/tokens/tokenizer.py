"""Counting with the model's own tokenizer and chat template, in this process.

Small requests are counted at once; from INLINE_BYTES on two threads do it, so that the event loop keeps turning: the
tokenizers release the GIL, rendering does not (3 ms for 200 messages). What takes longer than the deadline is answered
with the bound, and its thread ends by itself: its work is limited by the caps of `limits.py` and `fuel.py`.
"""

from collections.abc import Awaitable
from datetime import datetime
from pathlib import Path

from kvbudget.edge.openai.ask import Ask, ChatPrompt, OpaquePrompt, TextPrompt
from kvbudget.edge.openai.bytebound import jsons_bound
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.tokens.count import Count, CountFailedError, TokenIds, counted
from kvbudget.edge.tokens.folder import json_object, renderers_of, told_renderers
from kvbudget.edge.tokens.limits import MAX_RUN_CHARS, MAX_TEXT_BYTES, check_text
from kvbudget.edge.tokens.rendering import Clock, Rendered, Renderer
from kvbudget.edge.tokens.threads import DEADLINE_S, CountingThreads
from kvbudget.edge.tokens.vocabulary import SEGMENT_CACHE_BYTES, Vocabulary
from kvbudget.units import Tokens

# Body bytes from which a thread counts. fastokens takes 0.1 to 0.4 ms for 24 KB, Hugging Face 9 ms.
INLINE_BYTES = 24 * 1024
INLINE_BYTES_WITHOUT_FAST = 2 * 1024


class TokenizerCounter:
    """Exact counts for chat and completions; the bound for surfaces that it does not render.

    `notes` are lines for the operator: which tokenizer counts and why, which template was found.
    """

    name = "tokenizer"

    def __init__(
        self,
        vocabulary: Vocabulary,
        renderers: dict[str, Renderer],
        *,
        default_template_kwargs: dict[str, object] | None = None,
        max_text_bytes: int = MAX_TEXT_BYTES,
        max_run_chars: int = MAX_RUN_CHARS,
        deadline_s: float = DEADLINE_S,
        inline_bytes: int | None = None,
    ) -> None:
        self._vocabulary = vocabulary
        self._renderers = renderers
        self._default_kwargs = default_template_kwargs or {}
        self._max_text_bytes = max_text_bytes
        self._max_run_chars = max_run_chars
        self._inline_bytes = inline_bytes or (INLINE_BYTES if vocabulary.fast else INLINE_BYTES_WITHOUT_FAST)
        self._threads = CountingThreads(deadline_s)
        self.notes = (*vocabulary.notes, told_renderers(renderers))
        # The engine's window, once it is known: what cannot fit whatever it says is refused before it is tokenized.
        self.max_context: Tokens | None = None

    @classmethod
    def load(
        cls,
        folder: Path | str,
        *,
        now: Clock = datetime.now,
        chat_template: str | None = None,
        default_template_kwargs: dict[str, object] | None = None,
        deadline_s: float = DEADLINE_S,
        segment_cache_bytes: int = SEGMENT_CACHE_BYTES,
    ) -> "TokenizerCounter":
        """From a model folder with tokenizer.json. Blocks for a second or two; call it before serving.

        `chat_template` replaces the folder's own, as vLLM's `--chat-template` does; `now` is read by templates that
        print the date. Raises BadConfigError.
        """
        folder = Path(folder)
        config = json_object(folder / "tokenizer_config.json")
        renderers = renderers_of(folder, config, now, chat_template)
        vocabulary = Vocabulary.load(folder, config, segment_cache_bytes=segment_cache_bytes)
        return cls(vocabulary, renderers, default_template_kwargs=default_template_kwargs, deadline_s=deadline_s)

    @property
    def fast(self) -> bool:
        """Whether fastokens counts; else Hugging Face tokenizers alone."""
        return self._vocabulary.fast

    def count(self, ask: Ask) -> Count | Awaitable[Count]:
        """At once below the inline limit; an awaitable beyond it."""
        prompt = ask.prompt
        if isinstance(prompt, OpaquePrompt) or not isinstance(prompt, (ChatPrompt, TextPrompt)):
            return self._threads.bound.count(ask)
        if len(ask.raw) < self._inline_bytes:
            return self._count(ask, prompt)
        return self._threads.count(ask, lambda: self._count(ask, prompt))

    def close(self) -> None:
        """Let the threads go; counts under way end by themselves."""
        self._threads.close()

    def _count(self, ask: Ask, prompt: ChatPrompt | TextPrompt) -> Count:
        rendered: tuple[Rendered, ...]
        if isinstance(prompt, TextPrompt):
            rendered = prompt.texts
        else:
            # Before rendering as well: the template's work grows with what it is given.
            check_text(_contents(prompt), self._max_text_bytes, self._max_run_chars)
            if len(ask.raw) >= INLINE_BYTES:
                # Refuses what a template that indents JSON would turn into gigabytes; the number is not needed.
                jsons_bound((prompt.tools, prompt.template_kwargs, prompt.messages))
            rendered = (self._renderer_for(prompt).render(prompt, self._default_kwargs),)
        texts = [text for each in rendered for text in ((each,) if isinstance(each, str) else [p.text for p in each])]
        check_text(texts, self._max_text_bytes, self._max_run_chars)
        self._check_context(ask, rendered)
        try:
            encoded = [self._encoded(each, special=prompt.add_special_tokens) for each in rendered]
        except Exception as error:
            raise CountFailedError(f"the tokenizer failed: {error}") from error
        token_ids = encoded[0][1] if len(encoded) == 1 else None
        return counted(ask, tuple([length for length, _ in encoded]), exact=True, token_ids=token_ids)

    def _check_context(self, ask: Ask, rendered: tuple[Rendered, ...]) -> None:
        """Refuse a prompt that is too long for the engine's window however few tokens its text makes."""
        if self.max_context is None or ask.truncate_prompt_tokens is not None:
            return
        for each in rendered:
            least = self._vocabulary.least
            tokens = least(each) if isinstance(each, str) else sum(least(piece.text) for piece in each)
            if tokens > self.max_context:
                raise BadRequestError(
                    f"This model's maximum context length is {self.max_context} tokens. However, your prompt contains "
                    f"at least {tokens} input tokens, by its length alone. Shorten the prompt.",
                    None,
                    "context_length_exceeded",
                )

    def _encoded(self, rendered: Rendered, *, special: bool) -> tuple[int, TokenIds]:
        if isinstance(rendered, str):
            return self._vocabulary.encoded(rendered, special=special)
        return self._vocabulary.encoded_pieces(rendered)

    def _renderer_for(self, prompt: ChatPrompt) -> Renderer:
        """As transformers' `get_chat_template` chooses among named templates."""
        name = "tool_use" if prompt.tools is not None and "tool_use" in self._renderers else "default"
        renderer = self._renderers.get(name)
        if renderer is None:
            raise BadRequestError(
                "This model has no chat template; use /v1/completions", "messages", "chat_template_error"
            )
        return renderer


def _contents(prompt: ChatPrompt) -> list[str]:
    return [content for message in prompt.messages if isinstance(content := message.get("content"), str)]
