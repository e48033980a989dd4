"""Which `/v1/completions` prompts are accepted: text, a list of texts, token ids, or lists of token ids."""

from typing import cast

from kvbudget.edge.openai import fields
from kvbudget.edge.openai.errors import BadRequestError, shown
from kvbudget.edge.openai.prompts import TextPrompt, TokenPrompt

# vLLM 0.32 envs.VLLM_MAX_COMPLETION_PROMPTS.
MAX_PROMPTS = 1024
_FORMS = "a string, an array of strings, an array of token ids or an array of such arrays"


def completion_prompt(
    body: dict[str, object], field: str = "prompt", most: int = MAX_PROMPTS
) -> TextPrompt | TokenPrompt:
    """The prompts of a completions body, or of another that has at most `most` of them in `field`. Raises
    BadRequestError."""
    fields.refuse(body, "prompt_embeds", "embeddings have no countable tokens")
    if body.get("suffix") not in (None, ""):
        fields.refuse(body, "suffix", "engines place it differently, so it cannot be counted")
    add_special_tokens = fields.boolean(body, "add_special_tokens") is not False
    prompt = body.get(field)
    if prompt is None or prompt in ("", []):
        raise BadRequestError(f"{field} must be provided and non-empty", field, "empty_prompt")
    if isinstance(prompt, str):
        return TextPrompt((prompt,), add_special_tokens)
    if not isinstance(prompt, list):
        raise BadRequestError(f"{field} must be {_FORMS}, got {shown(prompt)}", field)
    if type(prompt[0]) is int:
        return TokenPrompt((_length(prompt, field),))
    if len(prompt) > most:
        raise BadRequestError(f"{field} holds {len(prompt)} prompts, at most {most} are accepted", field)
    if all(isinstance(item, str) for item in prompt):
        return TextPrompt(tuple(cast("list[str]", prompt)), add_special_tokens)
    return TokenPrompt(tuple(_length(item, f"{field}[{index}]") for index, item in enumerate(prompt)))


def _length(ids: object, at: str) -> int:
    """Number of token ids; whether they are in the vocabulary is the engine's to say."""
    if not isinstance(ids, list):
        raise BadRequestError(f"a prompt must be {_FORMS}, got {shown(ids)} at {at}", at)
    if not ids:
        raise BadRequestError(f"{at} holds no token ids", at, "empty_prompt")
    # Exact types: a bool is an int to isinstance, and engines differ in what they make of it. By set and min, in C:
    # a prompt may hold a million ids.
    if set(map(type, ids)) != {int} or min(ids) < 0:
        wrong = next(item for item in ids if type(item) is not int or item < 0)
        raise BadRequestError(f"{at} must hold token ids (integers of at least 0), got {shown(wrong)}", at)
    return len(ids)
