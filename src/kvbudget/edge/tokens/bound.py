"""The upper bound of a prompt's tokens from its bytes alone, without any vocabulary."""

import asyncio
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from kvbudget.edge.openai.ask import Ask, ChatPrompt, OpaquePrompt, TextPrompt, TokenPrompt
from kvbudget.edge.openai.body import LARGE_BODY_BYTES
from kvbudget.edge.openai.bytebound import json_bound, messages_bound, text_bound
from kvbudget.edge.tokens.count import Count, counted

# What a chat template adds of its own. The largest seen: default system prompts of about 100 tokens (gpt-oss), tool
# preambles of about 500 more (DeepSeek V3.1, Qwen3; the same is allowed for documents and other template arguments),
# role markers of at most 10 per message.
TEMPLATE_TOKENS_PER_REQUEST: Final = 256
TEMPLATE_TOKENS_WITH_TOOLS: Final = 1024
TEMPLATE_TOKENS_PER_MESSAGE: Final = 32
TEMPLATE_TOKENS_PER_TOOL: Final = 64
# BOS, EOS and the space that SentencePiece puts before a text (Llama 2).
SPECIAL_TOKENS_PER_PROMPT: Final = 4
# One is enough: a body of 16 MiB takes it a second at most.
THREADS: Final = 1


class BoundCounter:
    """Never counts too few, often several times too many (4-5x for English, more for CJK text).

    Proved: a tokenizer that covers at least one byte of its normalised input with each token makes at most as many
    tokens as that input has bytes. Byte-level BPE and BPE or Unigram with byte fallback do, special tokens included
    (each stands for a literal of two bytes or more, which pays for the prefix space that may follow it).

    Assumed: the normaliser is none, NFC, or SentencePiece's exchange of spaces for a character of its own that is in
    the vocabulary (NFKC and NFD can grow text further); a chat template renders every message, tool and template
    argument at most once, tools and arguments as JSON or as tags, and adds at most the `TEMPLATE_TOKENS_*` above.
    """

    name = "bound"

    def count(self, ask: Ask) -> Count:
        """The bound, at once; token ids are counted exactly. Raises BadRequestError (`prompt_too_large`)."""
        prompt = ask.prompt
        if isinstance(prompt, ChatPrompt):
            return counted(ask, (_chat_bound(prompt),), exact=False)
        if isinstance(prompt, TextPrompt):
            return counted(ask, tuple(text_bound(t) + SPECIAL_TOKENS_PER_PROMPT for t in prompt.texts), exact=False)
        if isinstance(prompt, OpaquePrompt):
            return counted(
                ask,
                (prompt.byte_bound + _template_tokens(prompt.messages, tools=bool(ask.body.get("tools"))),),
                exact=False,
            )
        return counted(ask, prompt.lengths, exact=True)


class ThreadedBoundCounter:
    """The same bound, for serving: large bodies are counted in a thread, so that the event loop keeps turning."""

    name = "bound"

    def __init__(self, *, inline_bytes: int = LARGE_BODY_BYTES) -> None:
        self._bound = BoundCounter()
        self._inline_bytes = inline_bytes
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="bound")

    def count(self, ask: Ask) -> Count | Awaitable[Count]:
        """At once below the inline limit and for token ids; an awaitable beyond it. Both raise as BoundCounter does."""
        if len(ask.raw) < self._inline_bytes or isinstance(ask.prompt, TokenPrompt):
            return self._bound.count(ask)
        return asyncio.get_running_loop().run_in_executor(self._threads, self._bound.count, ask)

    def close(self) -> None:
        """Let the thread go; a count under way ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _chat_bound(prompt: ChatPrompt) -> int:
    messages = messages_bound(prompt.messages)
    # A message may become several turns in a template: one for each tool call.
    turns = len(prompt.messages)
    for message in prompt.messages:
        if isinstance(calls := message.get("tool_calls"), list):
            turns += len(calls)
    tools, kwargs = prompt.tools, prompt.template_kwargs
    if not tools and not kwargs:
        return messages + _template_tokens(turns, tools=False)
    tools = tools or ()
    return (
        messages
        + _template_tokens(turns, tools=True)
        + json_bound(list(tools) or None)
        + TEMPLATE_TOKENS_PER_TOOL * len(tools)
        + json_bound(kwargs or None)
    )


def _template_tokens(messages: int, *, tools: bool) -> int:
    per_request = TEMPLATE_TOKENS_WITH_TOOLS if tools else TEMPLATE_TOKENS_PER_REQUEST if messages else 0
    return SPECIAL_TOKENS_PER_PROMPT + per_request + TEMPLATE_TOKENS_PER_MESSAGE * messages
