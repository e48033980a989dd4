"""Decides what an OpenAI request body asks of the embedded engine, and which bodies are refused with which words.

Statuses, types, params and the sentences that clients match on are those of vLLM 0.32 (`entrypoints/openai`,
`renderers/params.py`): unknown model 404, anything else 400, prompt + max_tokens over the window clipped in silence.
Sampling fields (temperature, top_p, stop, ...) are accepted and change nothing; fields that would change what the
request costs, and that this engine does not have, are refused by name.
"""

from dataclasses import dataclass
from typing import Any

import orjson

from kvbudget.edge.engine import text
from kvbudget.edge.engine.settings import EngineSettings
from kvbudget.edge.engine.text import Prompt

COMPLETION_MAX_TOKENS = 16  # vLLM's and OpenAI's default for /v1/completions
MAX_SEQUENCES = 16_384  # vLLM 0.32 VLLM_MAX_N_SEQUENCES
_NOT_HERE = (
    "echo",
    "use_beam_search",
    "prompt_logprobs",
    "logprobs",
    "suffix",
    "truncate_prompt_tokens",
    "prompt_embeds",
)
_TEXT_PARTS = ("text", "input_text", "output_text")  # the latter two of the Responses API


class ApiError(Exception):
    """A refusal in the engine's form: `{"error": {"message", "type", "param", "code"}}`, unless its API has another."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.body = orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": status}})


@dataclass(frozen=True, slots=True)
class Ask:
    """One generation request: `n` sequences for each prompt. Lengths in tokens."""

    prompts: tuple[Prompt, ...]
    max_tokens: tuple[int, ...]  # per prompt, clipped to the window
    n: int
    seed: int | None
    ignore_eos: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts; choices of one prompt share it in `usage`."""
        return sum(prompt.tokens for prompt in self.prompts)


def parse_json(data: bytes) -> dict[str, Any]:
    """The body as an object. Raises ApiError."""
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"the body is not JSON: {error}", "Bad Request") from None
    if not isinstance(body, dict):
        raise ApiError(400, "the body is not a JSON object", "Bad Request")
    return body


def parse_chat(body: dict[str, Any], settings: EngineSettings) -> Ask:
    """A /v1/chat/completions body. Raises ApiError."""
    check_model(body, settings)
    field = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    return ask_of(body, (chat_prompt(body),), field, None, settings)


def parse_completion(body: dict[str, Any], settings: EngineSettings) -> Ask:
    """A /v1/completions body. Raises ApiError."""
    check_model(body, settings)
    return ask_of(body, prompts_of(body.get("prompt")), "max_tokens", COMPLETION_MAX_TOKENS, settings)


def parse_tokenize(body: dict[str, Any], settings: EngineSettings) -> list[int]:
    """The token ids that a /tokenize body asks for. Raises ApiError."""
    check_model(body, settings)
    if "messages" in body:
        return text.chat_ids(_messages(body), _tools(body))
    prompt = body.get("prompt")
    if not isinstance(prompt, str):
        raise ApiError(400, "give `prompt` (a string) or `messages`", "Bad Request", "prompt")
    return text.text_ids(prompt)


def check_model(body: dict[str, Any], settings: EngineSettings) -> None:
    """Raises ApiError 404 unless the body names the served model or none."""
    model = body.get("model")
    if model is not None and model != settings.served_model_name:
        raise ApiError(404, f"The model `{str(model)[:200]}` does not exist.", "NotFoundError", "model")


def ask_of(
    body: dict[str, Any], prompts: tuple[Prompt, ...], field: str, default: int | None, settings: EngineSettings
) -> Ask:
    """What a body asks for beside its prompts; `field` holds the cap on new tokens. Raises ApiError."""
    for name in _NOT_HERE:
        if body.get(name) is not None and body[name] is not False and body[name] != "":
            raise ApiError(400, f"{name} is not supported by the embedded engine.", param=name)
    n = _integer(body, "n", 1)
    if n < 1 or n * len(prompts) > MAX_SEQUENCES:
        raise ApiError(400, f"n must be at least 1 and at most {MAX_SEQUENCES} in all, got {n}.", param="n")
    best_of = _integer(body, "best_of", n)
    if best_of != n:
        raise ApiError(
            400, f"best_of={best_of} differs from n={n}: not supported by the embedded engine.", param="best_of"
        )
    limit = _integer(body, field, default)
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise ApiError(400, "stream_options is not an object.", "Bad Request", "stream_options")
    stream = _flag(body, "stream")
    if options and not stream:
        raise ApiError(400, "Stream options can only be defined when `stream=True`.", "Bad Request", "stream_options")
    include_usage = _flag(options, "include_usage")
    return Ask(
        prompts=prompts,
        max_tokens=tuple(_clip(prompt.tokens, limit, field, settings.max_model_len) for prompt in prompts),
        n=n,
        seed=_integer(body, "seed", None),
        ignore_eos=_flag(body, "ignore_eos"),
        stream=stream,
        include_usage=include_usage,
        continuous_usage=include_usage and _flag(options, "continuous_usage_stats"),
    )


def _clip(prompt_tokens: int, limit: int | None, field: str, max_model_len: int) -> int:
    """New tokens that the engine will allow: asked ones, cut to the window without a word, as vLLM does."""
    if limit is not None and limit > max_model_len:
        raise ApiError(
            400,
            f"{field}={limit} cannot be greater than max_model_len=max_total_tokens={max_model_len}. "
            "Please request fewer output tokens.",
            param=field,
        )
    if prompt_tokens > max_model_len:
        raise ApiError(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
            f"{prompt_tokens} input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input.",
            param="input_tokens",
        )
    if prompt_tokens < 1:
        raise ApiError(400, "The prompt is empty.", param="prompt")
    room = max_model_len - prompt_tokens
    allowed = room if limit is None else min(limit, room)
    if allowed < 1:
        raise ApiError(400, f"max_tokens must be at least 1, got {allowed}.", param=field)
    return allowed


def chat_prompt(body: dict[str, Any]) -> Prompt:
    """The prompt of `messages` and `tools`. Raises ApiError."""
    return text.chat_prompt(_messages(body), _tools(body))


def _messages(body: dict[str, Any]) -> list[tuple[str, str]]:
    """(role, text) of each message; tool calls count as compact JSON after the text."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages must be a list with at least one message.", "Bad Request", "messages")
    pairs = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ApiError(400, "each message must be an object with a role.", "Bad Request", "messages")
        content = _content(message.get("content"))
        if message.get("tool_calls"):
            content += orjson.dumps(message["tool_calls"]).decode()
        pairs.append((message["role"], content))
    return pairs


def _content(content: object) -> str:
    """Text of a message; parts are joined, parts that are no text are refused."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = []
        for part in content:
            if isinstance(part, dict) and part.get("type") in _TEXT_PARTS and isinstance(part.get("text"), str):
                texts.append(part["text"])
            else:
                kind = part.get("type") if isinstance(part, dict) else type(part).__name__
                raise ApiError(
                    400, f"content part {str(kind)[:40]!r} is not text: this is a text model.", param="messages"
                )
        return "".join(texts)
    raise ApiError(400, "content must be a string, a list of parts or null.", "Bad Request", "messages")


def _tools(body: dict[str, Any]) -> bytes:
    tools = body.get("tools")
    if tools is None or tools == []:
        return b""
    if not isinstance(tools, list):
        raise ApiError(400, "tools must be a list.", "Bad Request", "tools")
    return orjson.dumps(tools)


def prompts_of(prompt: object) -> tuple[Prompt, ...]:
    """The four forms of a completion prompt: text, texts, token ids, lists of token ids."""
    if isinstance(prompt, str):
        return (text.text_prompt(prompt),)
    if isinstance(prompt, list) and prompt:
        if all(isinstance(item, str) for item in prompt):
            return tuple(text.text_prompt(item) for item in prompt)
        if all(type(item) is int for item in prompt):
            return (_ids_prompt(prompt),)
        if all(isinstance(item, list) and all(type(token) is int for token in item) for item in prompt):
            return tuple(_ids_prompt(item) for item in prompt)
    raise ApiError(400, "prompt must be a string, strings, token ids or lists of token ids.", "Bad Request", "prompt")


def _ids_prompt(ids: list[int]) -> Prompt:
    try:
        return text.ids_prompt(ids)
    except ValueError as error:
        raise ApiError(400, f"Token id {error} is out of vocabulary", param="prompt") from None


def _integer(body: dict[str, Any], name: str, default: Any) -> Any:
    """The field as an int, or `default` when it is missing or null."""
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not int:
        raise ApiError(400, f"{name} must be an integer, got {str(value)[:40]!r}.", "Bad Request", name)
    return value


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and type(value) is not bool:
        raise ApiError(400, f"{name} must be true or false, got {str(value)[:40]!r}.", "Bad Request", name)
    return bool(value)
