"""What a request asks of the engine: its prompt, how many sequences, how many new tokens; or why it is refused.

`truncate_prompt_tokens`: a positive number is honoured (the count is capped by it, as vLLM 0.32 keeps that many
tokens). -1 (to the engine's own window) and 0 are refused: the gate would have to guess what remains.
"""

from enum import StrEnum
from typing import NamedTuple

from kvbudget.edge.openai import fields
from kvbudget.edge.openai.body import read_object
from kvbudget.edge.openai.chat import chat_prompt
from kvbudget.edge.openai.completions import completion_prompt
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.openai.opaque import generate_prompt, messages_prompt, responses_prompt
from kvbudget.edge.openai.prompts import ChatPrompt, OpaquePrompt, Prompt, TextPrompt, TokenPrompt
from kvbudget.units import Tokens

__all__ = ["SURFACES", "Ask", "ChatPrompt", "OpaquePrompt", "Prompt", "Surface", "TextPrompt", "TokenPrompt",
           "parse_ask"]  # fmt: skip

# Far beyond use, far below what hurts: vLLM 0.32 itself allows 16,384 (VLLM_MAX_N_SEQUENCES).
MAX_SEQUENCES = 1024
# The API's default for /v1/completions, which vLLM and SGLang keep: a client that says nothing asks for 16.
COMPLETIONS_DEFAULT_TOKENS = Tokens(16)
_LOGPROBS = "logprobs of the prompt are computed outside of the KV cache pool and can exhaust GPU memory"


class Surface(StrEnum):
    """The APIs whose requests take KV cache."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    TGI_GENERATE = "tgi_generate"
    TGI_GENERATE_STREAM = "tgi_generate_stream"


SURFACES: dict[str, Surface] = {
    "/v1/chat/completions": Surface.CHAT,
    "/v1/completions": Surface.COMPLETIONS,
    "/v1/responses": Surface.RESPONSES,
    "/v1/messages": Surface.MESSAGES,
    "/generate": Surface.TGI_GENERATE,
    "/generate_stream": Surface.TGI_GENERATE_STREAM,
}


class Ask(NamedTuple):
    """One accepted request.

    `sequences` is how many the engine holds per prompt (n, best_of, beam width). `max_new_tokens` is per sequence, None
    when the client leaves it open. `max_new_field` is where the cap is written (`parameters.max_new_tokens`: nested).
    `truncate_prompt_tokens`: the engine keeps at most that many tokens of each prompt. `raw` is the body as it came.
    """

    surface: Surface
    model: str | None
    stream: bool
    sequences: int
    max_new_tokens: Tokens | None
    max_new_field: str
    prompt: Prompt
    truncate_prompt_tokens: Tokens | None
    body: dict[str, object]
    raw: bytes


# Members whose absence leaves a default. A body with none of them (most are) skips the reading of each: that is a
# third of what parsing costs.
_OPTIONS = frozenset((
    "echo", "n", "n_cmpl", "best_of", "use_beam_search", "prompt_logprobs", "kv_transfer_params",
    "truncate_prompt_tokens", "background", "session_params", "vllm_xargs",
))  # fmt: skip


def parse_ask(surface: Surface, raw: bytes) -> Ask:
    """The Ask in a request body. Raises BadRequestError for everything that cannot be forwarded as counted."""
    body = read_object(raw)
    if surface is Surface.CHAT:
        return _chat(body, raw)
    if surface is Surface.COMPLETIONS:
        return _completions(body, raw)
    if surface is Surface.RESPONSES:
        return _opaque(surface, body, raw, responses_prompt(body), "max_output_tokens")
    if surface is Surface.MESSAGES:
        return _opaque(surface, body, raw, messages_prompt(body), "max_tokens")
    return _generate(surface, body, raw)


def _chat(body: dict[str, object], raw: bytes) -> Ask:
    plain = body.keys().isdisjoint(_OPTIONS)
    if not plain and fields.boolean(body, "echo"):
        # vLLM 0.32 to_sampling_params: chat echo sets prompt_logprobs to top_logprobs, which is 0 and not None.
        raise BadRequestError(f"echo is not accepted for chat: {_LOGPROBS}", "echo", "prompt_logprobs_refused")
    field = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    return Ask(
        surface=Surface.CHAT,
        model=fields.string(body, "model"),
        stream=fields.boolean(body, "stream") or False,
        sequences=1 if plain else _sequences(body),
        max_new_tokens=_max_new(body, field),
        max_new_field=field,
        prompt=chat_prompt(body),
        truncate_prompt_tokens=None if plain else _truncation(body),
        body=body,
        raw=raw,
    )


def _completions(body: dict[str, object], raw: bytes) -> Ask:
    echo = fields.boolean(body, "echo") or False
    # 0 is a value as well: it asks for the chosen tokens' own logprobs, over the whole prompt.
    if fields.integer(body, "logprobs", low=-1) is not None and echo:
        raise BadRequestError(f"echo with logprobs is not accepted: {_LOGPROBS}", "echo", "prompt_logprobs_refused")
    # vLLM 0.32: max_tokens 0 with echo generates one token and drops it.
    asked = _max_new(body, "max_tokens", low=0 if echo else 1)
    return Ask(
        surface=Surface.COMPLETIONS,
        model=fields.string(body, "model"),
        stream=fields.boolean(body, "stream") or False,
        sequences=_sequences(body),
        max_new_tokens=COMPLETIONS_DEFAULT_TOKENS if asked is None else asked,
        max_new_field="max_tokens",
        prompt=completion_prompt(body),
        truncate_prompt_tokens=_truncation(body),
        body=body,
        raw=raw,
    )


def _opaque(surface: Surface, body: dict[str, object], raw: bytes, prompt: OpaquePrompt, field: str) -> Ask:
    return Ask(
        surface=surface,
        model=fields.string(body, "model"),
        stream=fields.boolean(body, "stream") or False,
        sequences=_sequences(body),  # llama.cpp turns these bodies into chat bodies and keeps a stray n
        max_new_tokens=_max_new(body, field),
        max_new_field=field,
        prompt=prompt,
        truncate_prompt_tokens=None,
        body=body,
        raw=raw,
    )


def _generate(surface: Surface, body: dict[str, object], raw: bytes) -> Ask:
    _refuse_smuggled(body)
    parameters = fields.json_object(body, "parameters") or {}
    if fields.boolean(parameters, "decoder_input_details", "parameters."):
        raise BadRequestError(
            f"decoder_input_details is not accepted: {_LOGPROBS}",
            "parameters.decoder_input_details",
            "prompt_logprobs_refused",
        )
    asked = _max_new(parameters, "max_new_tokens", at="parameters.")
    return Ask(
        surface=surface,
        model=None,
        stream=surface is Surface.TGI_GENERATE_STREAM or fields.boolean(body, "stream") or False,
        sequences=fields.integer(parameters, "best_of", 1, MAX_SEQUENCES, "parameters.") or 1,
        max_new_tokens=asked,
        max_new_field="parameters.max_new_tokens",
        prompt=generate_prompt(body),
        truncate_prompt_tokens=None,
        body=body,
        raw=raw,
    )


def _sequences(body: dict[str, object]) -> int:
    """With `use_beam_search` vLLM takes n for the beam width; llama.cpp prefers `n_cmpl` to n."""
    _refuse_smuggled(body)
    n = fields.integer(body, "n", 1, MAX_SEQUENCES) or 1
    best_of = fields.integer(body, "best_of", 1, MAX_SEQUENCES) or 1
    fields.boolean(body, "use_beam_search")
    return max(n, best_of, fields.integer(body, "n_cmpl", 1, MAX_SEQUENCES) or 1)


def _refuse_smuggled(body: dict[str, object]) -> None:
    """Members that make the engine run another prompt than the one counted, hold it past its answer, or leave the pool.

    A promise ends with the engine's answer. `background` is answered at once while the generation goes on (vLLM 0.32
    entrypoints/openai/responses/serving.py); with `do_remote_decode` the blocks stay until another engine fetches them
    (vLLM 0.32 NixlConnector.request_finished). SGLang's `session_params` puts the turns of its session before the
    prompt.
    """
    if fields.boolean(body, "background"):
        raise BadRequestError(
            "background is not accepted here: its answer comes before its tokens, so that nothing tells when its KV "
            "cache is free; leave it out",
            "background",
            "unsupported_field",
        )
    fields.refuse(body, "session_params", "the session's tokens are not in this request")
    if body.get("prompt_logprobs") is not None:
        raise BadRequestError(
            f"prompt_logprobs is not accepted: {_LOGPROBS}", "prompt_logprobs", "prompt_logprobs_refused"
        )
    transfer = fields.json_object(body, "kv_transfer_params")
    if transfer is not None and transfer.get("do_remote_decode") not in (None, False):
        raise BadRequestError(
            "kv_transfer_params.do_remote_decode is not accepted: the engine would hold the KV cache past its answer",
            "kv_transfer_params.do_remote_decode",
            "unsupported_field",
        )
    extra = body.get("vllm_xargs")
    if isinstance(extra, dict) and "kv_transfer_params" in extra:
        # vLLM 0.32 puts both into the same `extra_args`.
        fields.refuse(extra, "kv_transfer_params", "it would replace what was checked", "vllm_xargs.")
    if transfer is not None and "prompt_token_ids" in transfer:
        # vLLM 0.32 renderers/online_renderer.py runs these ids in place of the messages.
        raise BadRequestError(
            "kv_transfer_params.prompt_token_ids is not accepted: it replaces the prompt that was counted",
            "kv_transfer_params.prompt_token_ids",
            "unsupported_field",
        )


def _max_new(body: dict[str, object], field: str, *, low: int = 1, at: str = "") -> Tokens | None:
    value = fields.integer(body, field, low, at=at)
    return None if value is None else Tokens(max(value, 1))


def _truncation(body: dict[str, object]) -> Tokens | None:
    value = fields.integer(body, "truncate_prompt_tokens", low=-1)
    if value in (-1, 0):
        raise BadRequestError(
            f"truncate_prompt_tokens {value} is not accepted here: give the number of tokens to keep",
            "truncate_prompt_tokens",
            "unsupported_field",
        )
    return None if value is None else Tokens(value)
