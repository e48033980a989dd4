"""Counting with mistral-common, for folders in Mistral's own form: tekken.json or a versioned SentencePiece model.

vLLM 0.32 takes it for them (`renderers/mistral.py`): no Jinja template, control tokens never come from text. Slower
than fastokens (8 MB/s), so that a thread counts from 2 KB on.
"""

from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from kvbudget.edge.openai.ask import Ask, ChatPrompt, TextPrompt
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.tokens.count import Count, CountFailedError, counted
from kvbudget.edge.tokens.folder import mistral_file
from kvbudget.edge.tokens.limits import MAX_RUN_CHARS, MAX_TEXT_BYTES, check_text
from kvbudget.edge.tokens.threads import DEADLINE_S, CountingThreads
from kvbudget.edge.tokens.tokenizer import INLINE_BYTES_WITHOUT_FAST
from kvbudget.errors import BadConfigError
from kvbudget.extras import install

_REASON_CHARS = 500


class MistralCounter:
    """Exact counts for chat and completions; the bound for surfaces that it does not render."""

    name = "mistral-common"

    def __init__(self, tokenizer: Any, *, deadline_s: float = DEADLINE_S) -> None:
        self._tokenizer = tokenizer
        self._text = tokenizer.instruct_tokenizer.tokenizer
        self._threads = CountingThreads(deadline_s)

    @classmethod
    def load(cls, folder: Path, *, deadline_s: float = DEADLINE_S) -> "MistralCounter":
        """From a folder's tekken.json or `tokenizer.model.v*`. Raises BadConfigError."""
        try:
            from mistral_common.protocol.instruct.validator import ValidationMode
            from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
        except ImportError as error:
            raise BadConfigError(
                f"{folder} holds a tokenizer of Mistral's own form, and mistral-common is not installed ({error})",
                fix=f"{install('mistral')}, or --tokenizer engine",
            ) from None
        file = mistral_file(folder)
        if file is None:
            raise BadConfigError(f"{folder} holds neither tekken.json nor tokenizer.model.v*")
        try:
            # As vLLM's: in mode `test` it takes what clients send, an assistant's turn at the end included.
            return cls(MistralTokenizer.from_file(str(file), mode=ValidationMode.test), deadline_s=deadline_s)
        except Exception as error:
            raise BadConfigError(f"{file} cannot be read as a tokenizer: {error}") from error

    def count(self, ask: Ask) -> Count | Awaitable[Count]:
        """At once for short requests; an awaitable beyond."""
        prompt = ask.prompt
        if not isinstance(prompt, (ChatPrompt, TextPrompt)):
            return self._threads.bound.count(ask)
        if len(ask.raw) < INLINE_BYTES_WITHOUT_FAST:
            return self._count(ask, prompt)
        return self._threads.count(ask, lambda: self._count(ask, prompt))

    def close(self) -> None:
        """Let the threads go; counts under way end by themselves."""
        self._threads.close()

    def _count(self, ask: Ask, prompt: ChatPrompt | TextPrompt) -> Count:
        if isinstance(prompt, TextPrompt):
            check_text(list(prompt.texts), MAX_TEXT_BYTES, MAX_RUN_CHARS)
            try:
                ids = [self._text.encode(text, bos=prompt.add_special_tokens, eos=False) for text in prompt.texts]
            except Exception as error:
                raise CountFailedError(f"the tokenizer failed: {error}") from error
        else:
            check_text(_texts(prompt), MAX_TEXT_BYTES, MAX_RUN_CHARS)
            ids = [self._chat_ids(ask, prompt)]
        lengths = tuple([len(each) for each in ids])
        return counted(ask, lengths, exact=True, token_ids=ids[0] if len(ids) == 1 else None)

    def _chat_ids(self, ask: Ask, prompt: ChatPrompt) -> list[int]:
        from mistral_common.protocol.instruct.request import ChatCompletionRequest

        body: dict[str, Any] = {"messages": [dict(message) for message in prompt.messages]}
        if prompt.tools is not None:
            body["tools"] = list(prompt.tools)
        if prompt.continue_final_message:
            body["continue_final_message"] = True
        if "reasoning_effort" in ask.body:
            body["reasoning_effort"] = ask.body["reasoning_effort"]
        try:
            request = ChatCompletionRequest.from_openai(**body)
            return list(self._tokenizer.encode_chat_completion(request).tokens)
        except Exception as error:
            # As vLLM (`safe_apply_chat_template`): whatever goes wrong is told to the client in the library's words.
            raise BadRequestError(
                f"mistral-common rejects these messages: {str(error)[:_REASON_CHARS]}",
                "messages",
                "chat_template_error",
            ) from None


def _texts(prompt: ChatPrompt) -> list[str]:
    return [content for message in prompt.messages if isinstance(content := message.get("content"), str)]
