"""TGI's `/generate` and `/generate_stream`: what they ask for, and the counts in their answers."""

from typing import cast

from kvbudget.edge.http.messages import Headers
from kvbudget.edge.openai import fields
from kvbudget.edge.openai.body import MAX_MEMBERS
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.openai.opaque import generate_text
from kvbudget.edge.openai.prompts import TextPrompt
from kvbudget.edge.openai.tails import Member
from kvbudget.edge.openai.usage import Usage, is_count
from kvbudget.edge.surfaces import members
from kvbudget.edge.surfaces.ask import Ask, Surface
from kvbudget.units import Tokens

_DETAILS = Member("details")


def parse(surface: Surface, body: dict[str, object], raw: bytes) -> Ask:
    """The Ask of a `/generate` body: raw text, no template. Raises BadRequestError.

    `parameters.best_of` multiplies; `truncate` keeps the last tokens of the prompt; `decoder_input_details` asks for
    logprobs of the prompt; `details` and `top_n_tokens` hold nothing.
    """
    members.refuse_smuggled(body)
    members.no_prompt_logprobs(body)
    parameters = fields.json_object(body, "parameters") or {}
    if len(parameters) > MAX_MEMBERS:
        raise BadRequestError(
            f"parameters has {len(parameters)} members, at most {MAX_MEMBERS} are accepted", "parameters"
        )
    at = "parameters."
    best_of = fields.integer(parameters, "best_of", 1, members.MAX_SEQUENCES, at) or 1
    stream = surface is Surface.TGI_GENERATE_STREAM or fields.boolean(body, "stream") or False
    truncate = fields.integer(parameters, "truncate", 1, at=at)
    return Ask(
        surface,
        None,
        stream,
        best_of,
        members.max_new(parameters, "max_new_tokens", at=at),
        "parameters.max_new_tokens",
        TextPrompt((generate_text(body),), add_special_tokens=True),
        None if truncate is None else Tokens(truncate),
        body,
        raw,
        paced=stream and best_of == 1,
        prompt_logprobs=fields.boolean(parameters, "decoder_input_details", at) is True,
    )


def usage(tail: bytes, headers: Headers) -> Usage | None:
    """Counts of an answer: `details` (of the last event, or if the client asked for them), else TGI's own headers."""
    details = next(_DETAILS.objects(tail), {})
    generated, told = _count(details.get("generated_tokens")), _count(details.get("input_length"))
    for name, value in headers:
        if name == b"x-generated-tokens" and generated is None:
            generated = _number(value)
        elif name == b"x-prompt-tokens" and told is None:
            told = _number(value)
    if generated is None:
        return None
    return Usage(None if told is None else Tokens(told), Tokens(generated), None)


def _count(value: object) -> int | None:
    return cast("int", value) if is_count(value) else None


def _number(value: bytes) -> int | None:
    return int(value) if value.isdigit() and len(value) < 16 else None
