"""Embeddings, classification, pooling, scores and reranking: prompts that nothing is generated for."""

from typing import cast

from kvbudget.edge.http.messages import Headers
from kvbudget.edge.openai import fields
from kvbudget.edge.openai.chat import chat_prompt
from kvbudget.edge.openai.completions import completion_prompt
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.openai.prompts import Prompt, TextPrompt, TokenPrompt
from kvbudget.edge.openai.usage import Usage, usage_in
from kvbudget.edge.surfaces import charges, members
from kvbudget.edge.surfaces.ask import Ask, Charge, Surface
from kvbudget.units import Tokens

# The body's own limit is what bounds a list; this only keeps one request from being all of it.
MAX_INPUTS = 65_536
# Texts from which a bound is charged: an engine that counts is asked once for each of them, and what is held at once
# does not grow with their number.
COUNTED_TEXTS = 16
# vLLM 0.32 entrypoints/pooling/scoring/protocol.py: the names under which it takes the two sides of a score.
_SIDES = (("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2"))


def parse_inputs(surface: Surface, body: dict[str, object], raw: bytes) -> Ask:
    """The Ask of `/v1/embeddings`, `/pooling`, `/classify`: `input` (texts, token ids) or `messages`, else whatever the
    engine's own processors take. Raises BadRequestError."""
    if body.get("input") is not None and not _is_chat(body["input"]):
        prompt: Prompt = completion_prompt(body, "input", MAX_INPUTS)
        return _ask(surface, body, raw, prompt, charges.prefill_only)
    messages = body.get("messages", body.get("input"))
    if not isinstance(messages, list) or not messages or isinstance(messages[0], list):
        # `data` of an engine's own processor, batches of chats: not counted.
        inputs = len(messages) if isinstance(messages, list) and messages else 1
        return _ask(surface, body, raw, TokenPrompt((1,) * inputs), charges.windows, inexact=True)
    try:
        # vLLM 0.32 ChatRequestOptionsMixin: no generation prompt unless it is asked for.
        chat = chat_prompt({"add_generation_prompt": False, **body, "messages": messages})
    except BadRequestError as error:
        if error.code != "unsupported_content_part":
            raise
        return _ask(surface, body, raw, TokenPrompt((1,)), charges.windows, inexact=True)
    return _ask(surface, body, raw, chat, charges.prefill_only)


def parse_pairs(surface: Surface, body: dict[str, object], raw: bytes) -> Ask:
    """The Ask of `/v1/score` and `/v1/rerank`: each query with each document. Raises BadRequestError."""
    left, right = ("query", "documents") if surface is Surface.RERANK else _sides(body)
    queries, documents = _texts(body, left), _texts(body, right)
    count = max(len(queries), len(documents))
    if len(queries) not in (1, len(documents)):
        raise BadRequestError(f"{left} must be one, or as many as {right} ({len(documents)}), got {len(queries)}", left)
    if count > MAX_INPUTS:
        raise BadRequestError(f"{right} holds {count} texts, at most {MAX_INPUTS} are accepted", right)
    if None in queries or None in documents:  # content parts, perhaps images
        return _ask(surface, body, raw, TokenPrompt((1,) * count), charges.windows, inexact=True)
    # Each text once: joined, a long query with many documents would take the product of their sizes.
    texts = TextPrompt((*cast("list[str]", queries), *cast("list[str]", documents)), add_special_tokens=True)
    charge = charges.pairs if len(queries) == 1 else charges.matched_pairs
    return _ask(surface, body, raw, texts, charge, inexact=True)


def usage(tail: bytes, headers: Headers) -> Usage | None:
    """The prompt's tokens as the engine counted them; nothing was generated, and no length is learned from that."""
    told = usage_in(tail)
    return None if told is None else told._replace(completion_tokens=None)


def _ask(
    surface: Surface, body: dict[str, object], raw: bytes, prompt: Prompt, charge: Charge, *, inexact: bool = False
) -> Ask:
    members.refuse_smuggled(body)
    kept = fields.integer(body, "truncate_prompt_tokens", low=-1)
    to_window = kept in (-1, 0)  # what the engine cuts to its window cannot be longer than that
    return Ask(
        surface,
        members.model(body),
        False,
        1,
        Tokens(1),
        "",
        prompt,
        None if kept is None or to_window else Tokens(kept),
        body,
        raw,
        charge=charge,
        inexact=inexact or to_window,
        bounded=isinstance(prompt, TextPrompt) and len(prompt.texts) > COUNTED_TEXTS,
    )


def _is_chat(value: object) -> bool:
    """vLLM 0.32 takes messages under `input` as well, and lists of chats."""
    while isinstance(value, list) and value and isinstance(value[0], list) and value[0]:
        if not isinstance(value[0][0], dict):
            return False
        value = value[0]
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _sides(body: dict[str, object]) -> tuple[str, str]:
    for left, right in _SIDES:
        if body.get(left) is not None and body.get(right) is not None:
            return left, right
    raise BadRequestError("queries and documents must be provided (or text_1 and text_2)", "queries", "empty_prompt")


def _texts(body: dict[str, object], name: str) -> list[str | None]:
    """The texts of one side; None for what is no text."""
    value = body.get(name)
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):  # {"content": [parts]}: several parts are several documents
        parts = value.get("content")
        return [None] * max(1, len(parts)) if isinstance(parts, list) else [None]
    if not isinstance(value, list) or not value:
        raise BadRequestError(f"{name} must be a non-empty text or array of texts", name, "empty_prompt")
    return [item if isinstance(item, str) else None for item in value]
