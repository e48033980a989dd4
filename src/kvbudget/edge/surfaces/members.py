"""Members that several APIs share: how many sequences, which cap, and what is refused whatever the API."""

from typing import Final

from kvbudget.edge.openai import fields
from kvbudget.edge.openai.errors import BadRequestError, shown
from kvbudget.units import Tokens

# Far beyond use, far below what hurts: vLLM 0.32 itself allows 16,384 (VLLM_MAX_N_SEQUENCES).
MAX_SEQUENCES: Final = 1024
MOST_MODEL_CHARS: Final = 512  # a hub id has 96 at most, and a path can be served under its own name
WHY_NO_LOGPROBS: Final = "logprobs of the prompt are computed outside of the KV cache pool and can exhaust GPU memory"

# Members whose absence leaves a default. A body with none of them (most are) skips the reading of each: that is a
# third of what parsing costs.
OPTIONS: Final = frozenset((
    "echo", "n", "n_cmpl", "best_of", "use_beam_search", "prompt_logprobs", "kv_transfer_params",
    "truncate_prompt_tokens", "background", "session_params", "vllm_xargs",
))  # fmt: skip


def model(body: dict[str, object]) -> str | None:
    """The model that is asked for. Lengths are learned by it, and kept for a long time: it cannot be a megabyte."""
    name = fields.string(body, "model")
    if name is not None and len(name) > MOST_MODEL_CHARS:
        raise BadRequestError(
            f"model must have at most {MOST_MODEL_CHARS} characters, got {len(name)}: {shown(name)}", "model"
        )
    return name


def sequences(body: dict[str, object]) -> int:
    """With `use_beam_search` vLLM takes n for the beam width; llama.cpp prefers `n_cmpl` to n."""
    refuse_smuggled(body)
    n = fields.integer(body, "n", 1, MAX_SEQUENCES) or 1
    best_of = fields.integer(body, "best_of", 1, MAX_SEQUENCES) or 1
    fields.boolean(body, "use_beam_search")
    return max(n, best_of, fields.integer(body, "n_cmpl", 1, MAX_SEQUENCES) or 1)


def refuse_smuggled(body: dict[str, object]) -> None:
    """Members that make the engine run another prompt than the one counted, or hold it past its answer.

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


def prompt_logprobs(body: dict[str, object], at: str = "") -> bool:
    """Whether `prompt_logprobs` is asked for; 0 asks for the chosen tokens' own. Of the whole vocabulary it never is:
    tokens x vocabulary numbers do not only fill a GPU, they are the answer as well."""
    value = fields.integer(body, "prompt_logprobs", -1, at=at)
    if value == -1:
        raise BadRequestError(
            f"{at}prompt_logprobs -1 (the whole vocabulary) is not accepted: {WHY_NO_LOGPROBS}; give a number",
            f"{at}prompt_logprobs",
            "prompt_logprobs_refused",
        )
    return value is not None


def no_prompt_logprobs(body: dict[str, object]) -> None:
    """Where the API has none, but another engine may read it."""
    if body.get("prompt_logprobs") is not None:
        raise BadRequestError(
            f"prompt_logprobs is not accepted here: {WHY_NO_LOGPROBS}", "prompt_logprobs", "prompt_logprobs_refused"
        )


def max_new(body: dict[str, object], field: str, *, low: int = 1, at: str = "") -> Tokens | None:
    """The client's cap on new tokens per sequence; at least 1, because one token is always computed."""
    value = fields.integer(body, field, low, at=at)
    return None if value is None else Tokens(max(value, 1))


def at_least(body: dict[str, object], cap: Tokens) -> Tokens:
    """The cap to write in where the client named none: vLLM 0.32 refuses one below `min_tokens`, and by itself takes
    all that is left of the window."""
    least = body.get("min_tokens")
    if type(least) is int and cap < least <= fields.LARGEST_INTEGER:
        return Tokens(least)
    return cap


def truncation(body: dict[str, object]) -> Tokens | None:
    """`truncate_prompt_tokens` of a generating request: a positive number is honoured (vLLM 0.32 keeps that many
    tokens). -1 (to the engine's own window) and 0 are refused: the gate would have to guess what remains."""
    value = fields.integer(body, "truncate_prompt_tokens", low=-1)
    if value in (-1, 0):
        raise BadRequestError(
            f"truncate_prompt_tokens {value} is not accepted here: give the number of tokens to keep",
            "truncate_prompt_tokens",
            "unsupported_field",
        )
    return None if value is None else Tokens(value)
