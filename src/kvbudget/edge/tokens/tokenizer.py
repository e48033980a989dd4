"""Counting with the model's own tokenizer and chat template, in this process.

Small requests are counted at once; from INLINE_BYTES on two threads do it, so that the event loop keeps turning: the
tokenizers release the GIL, rendering does not (3 ms for 200 messages). What takes longer than the deadline is answered
with the bound, and its thread ends by itself: its work is limited by the caps of `limits.py` and `fuel.py`.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import cast

from kvbudget.edge.openai.ask import Ask, ChatPrompt, OpaquePrompt, TextPrompt
from kvbudget.edge.openai.bytebound import jsons_bound
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.tokens.bound import ThreadedBoundCounter
from kvbudget.edge.tokens.count import Count, CountFailedError, counted
from kvbudget.edge.tokens.limits import MAX_RUN_CHARS, MAX_TEXT_BYTES, check_text
from kvbudget.edge.tokens.template import ChatTemplate, Clock
from kvbudget.edge.tokens.vocabulary import Vocabulary
from kvbudget.errors import BadConfigError

# Body bytes from which a thread counts. fastokens takes 0.1 to 0.4 ms for 24 KB, Hugging Face 9 ms.
INLINE_BYTES = 24 * 1024
INLINE_BYTES_WITHOUT_FAST = 2 * 1024
THREADS = 2
DEADLINE_S = 0.5
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class TokenizerCounter:
    """Exact counts for chat and completions; the bound for surfaces that it does not render.

    `notes` are lines for the operator: which tokenizer counts and why, which template was found.
    """

    name = "tokenizer"

    def __init__(
        self,
        vocabulary: Vocabulary,
        templates: dict[str, ChatTemplate],
        *,
        default_template_kwargs: dict[str, object] | None = None,
        max_text_bytes: int = MAX_TEXT_BYTES,
        max_run_chars: int = MAX_RUN_CHARS,
        deadline_s: float = DEADLINE_S,
        inline_bytes: int | None = None,
    ) -> None:
        self._vocabulary = vocabulary
        self._templates = templates
        self._default_kwargs = default_template_kwargs or {}
        self._max_text_bytes = max_text_bytes
        self._max_run_chars = max_run_chars
        self._deadline_s = deadline_s
        self._inline_bytes = inline_bytes or (INLINE_BYTES if vocabulary.fast else INLINE_BYTES_WITHOUT_FAST)
        self._bound = ThreadedBoundCounter()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="count")
        self.notes = (*vocabulary.notes, _template_note(templates))

    @classmethod
    def load(
        cls,
        folder: Path | str,
        *,
        now: Clock = datetime.now,
        chat_template: str | None = None,
        default_template_kwargs: dict[str, object] | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> "TokenizerCounter":
        """From a model folder with tokenizer.json. Blocks for a second or two; call it before serving.

        `chat_template` replaces the folder's own, as vLLM's `--chat-template` does; `now` is read by templates that
        print the date. Raises BadConfigError.
        """
        folder = Path(folder)
        config = _json_object(folder / "tokenizer_config.json")
        sources = {"default": chat_template} if chat_template is not None else _template_sources(folder, config)
        special_tokens = _special_tokens(config, folder)
        templates = {name: ChatTemplate(source, special_tokens, now) for name, source in sources.items()}
        vocabulary = Vocabulary.load(folder, config)
        return cls(vocabulary, templates, default_template_kwargs=default_template_kwargs, deadline_s=deadline_s)

    @property
    def fast(self) -> bool:
        """Whether fastokens counts; else Hugging Face tokenizers alone."""
        return self._vocabulary.fast

    def count(self, ask: Ask) -> Count | Awaitable[Count]:
        """At once below the inline limit; an awaitable beyond it."""
        prompt = ask.prompt
        if isinstance(prompt, OpaquePrompt) or not isinstance(prompt, (ChatPrompt, TextPrompt)):
            return self._bound.count(ask)
        if len(ask.raw) < self._inline_bytes:
            return self._count(ask, prompt)
        return self._in_thread(ask, lambda: self._count(ask, prompt))

    def close(self) -> None:
        """Let the threads go; counts under way end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._bound.close()

    async def _in_thread(self, ask: Ask, work: Callable[[], Count]) -> Count:
        try:
            # Cancelled on the deadline: work that has not begun never does.
            return await asyncio.wait_for(asyncio.wrap_future(self._threads.submit(work)), self._deadline_s)
        except TimeoutError:
            bound = self._bound.count(ask)
            return bound if isinstance(bound, Count) else await bound

    def _count(self, ask: Ask, prompt: ChatPrompt | TextPrompt) -> Count:
        if isinstance(prompt, TextPrompt):
            texts = list(prompt.texts)
        else:
            # Before rendering as well: the template's work grows with what it is given.
            check_text(_contents(prompt), self._max_text_bytes, self._max_run_chars)
            if len(ask.raw) >= INLINE_BYTES:
                # Refuses what a template that indents JSON would turn into gigabytes; the number is not needed.
                jsons_bound((prompt.tools, prompt.template_kwargs, prompt.messages))
            texts = [self._template_for(prompt).render(prompt, self._default_kwargs)]
        check_text(texts, self._max_text_bytes, self._max_run_chars)
        try:
            encoded = [self._vocabulary.encoded(text, special=prompt.add_special_tokens) for text in texts]
        except Exception as error:
            raise CountFailedError(f"the tokenizer failed: {error}") from error
        token_ids = encoded[0][1] if len(encoded) == 1 else None
        return counted(ask, tuple([length for length, _ in encoded]), exact=True, token_ids=token_ids)

    def _template_for(self, prompt: ChatPrompt) -> ChatTemplate:
        """As transformers' `get_chat_template` chooses among named templates."""
        name = "tool_use" if prompt.tools is not None and "tool_use" in self._templates else "default"
        template = self._templates.get(name)
        if template is None:
            raise BadRequestError(
                "This model has no chat template; use /v1/completions", "messages", "chat_template_error"
            )
        return template


def _contents(prompt: ChatPrompt) -> list[str]:
    return [content for message in prompt.messages if isinstance(content := message.get("content"), str)]


def _template_note(templates: dict[str, ChatTemplate]) -> str:
    if not templates:
        return "no chat template found: chat requests will be refused"
    formats = ", ".join(f"{name} ({'parts' if template.parts else 'string'})" for name, template in templates.items())
    return f"chat template: {formats}"


def _template_sources(folder: Path, config: dict[str, object]) -> dict[str, str]:
    """Where transformers 5 looks: chat_template.jinja and additional_chat_templates/, then the configuration files."""
    file = folder / "chat_template.jinja"
    named = {path.stem: _text(path) for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if file.is_file():
        named["default"] = _text(file)
    if named:
        return named
    given = config.get("chat_template")
    if given is None:
        given = _json_object(folder / "chat_template.json").get("chat_template")
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
    older = _json_object(folder / "special_tokens_map.json")
    for name in _SPECIAL_TOKENS:
        value = config.get(name, older.get(name))
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            tokens[name] = value
    return tokens


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfigError(f"{file} cannot be read: {error}") from error


def _json_object(file: Path) -> dict[str, object]:
    """Empty when the file is not there. Raises BadConfigError when it is damaged."""
    if not file.is_file():
        return {}
    try:
        value = json.loads(_text(file))
    except (ValueError, RecursionError) as error:
        raise BadConfigError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadConfigError(f"{file} must hold a JSON object")
    return value
