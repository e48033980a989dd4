"""OpenAI's `/v1/chat/completions`: what it asks for."""

from kvbudget.edge.openai import fields
from kvbudget.edge.openai.chat import chat_prompt
from kvbudget.edge.surfaces import members
from kvbudget.edge.surfaces.ask import Ask, Surface


def parse(surface: Surface, body: dict[str, object], raw: bytes) -> Ask:
    """The Ask of a chat body. Raises BadRequestError."""
    plain = not fields.has_any(body, members.OPTIONS)
    sequences = 1 if plain else members.sequences(body)
    beam = not plain and fields.boolean(body, "use_beam_search") is True
    # vLLM 0.32 to_sampling_params: chat echo sets prompt_logprobs to top_logprobs, which is 0 and not None.
    logprobs = not plain and (fields.boolean(body, "echo") is True) | members.prompt_logprobs(body)
    stream = fields.boolean(body, "stream") or False
    field = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    model, prompt = members.model(body), chat_prompt(body)
    most, truncated = members.max_new(body, field), None if plain else members.truncation(body)
    paced = stream and sequences == 1 and not beam
    return Ask(
        surface, model, stream, sequences, most, field, prompt, truncated, body, raw,
        paced=paced, beam=beam, prompt_logprobs=logprobs,
    )  # fmt: skip
