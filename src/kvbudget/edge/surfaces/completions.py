"""OpenAI's `/v1/completions`: what it asks for."""

from kvbudget.edge.openai import fields
from kvbudget.edge.openai.completions import completion_prompt
from kvbudget.edge.surfaces import members
from kvbudget.edge.surfaces.ask import Ask, Surface
from kvbudget.units import Tokens

# The API's default, which vLLM and SGLang keep: a client that says nothing asks for 16.
DEFAULT_TOKENS = Tokens(16)


def parse(surface: Surface, body: dict[str, object], raw: bytes) -> Ask:
    """The Ask of a completions body. Raises BadRequestError."""
    sequences = members.sequences(body)
    echo = fields.boolean(body, "echo") or False
    # vLLM 0.32 to_sampling_params: echo makes logprobs those of the prompt as well; 0 asks for the chosen tokens' own.
    echoed = fields.integer(body, "logprobs", low=-1) is not None and echo
    beam = fields.boolean(body, "use_beam_search") is True
    stream = fields.boolean(body, "stream") or False
    # vLLM 0.32: max_tokens 0 with echo generates one token and drops it.
    asked = members.max_new(body, "max_tokens", low=0 if echo else 1)
    return Ask(
        surface,
        members.model(body),
        stream,
        sequences,
        DEFAULT_TOKENS if asked is None else asked,
        "max_tokens",
        completion_prompt(body),
        members.truncation(body),
        body,
        raw,
        paced=stream and sequences == 1 and not beam,
        beam=beam,
        prompt_logprobs=members.prompt_logprobs(body) or echoed,
    )
