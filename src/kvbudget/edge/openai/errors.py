"""What a refused request is told: the error body of the OpenAI API, its codes, types and sentences.

Bodies are `{"error": {"message", "type", "param", "code"}}` with string codes. vLLM 0.32 uses the same keys with an
integer code; clients match on its sentence "This model's maximum context length is N tokens", so that form is kept.
"""

from kvbudget.errors import InputError

HTTP_BAD_REQUEST = 400
HTTP_UNAUTHORIZED = 401
HTTP_NOT_FOUND = 404
HTTP_UNSUPPORTED_MEDIA = 415

_INVALID = "invalid_request_error"
_UNAUTHORIZED = "authentication_error"
_RATE = "rate_limit_error"
_UNAVAILABLE = "service_unavailable_error"
_SERVER = "server_error"

# Code -> type. Every code that the gate sends stands here; docs and tests read this table.
ERROR_TYPES: dict[str, str] = {
    # the body or a header
    "invalid_json": _INVALID,
    "invalid_value": _INVALID,
    "duplicate_field": _INVALID,
    "nested_too_deep": _INVALID,
    "empty_prompt": _INVALID,
    "unsupported_content_encoding": _INVALID,
    "unsupported_field": _INVALID,
    "unsupported_content_part": _INVALID,
    "prompt_logprobs_refused": _INVALID,
    "beam_search_refused": _INVALID,
    "chat_template_error": _INVALID,
    "prompt_refused_by_engine": _INVALID,
    "prompt_too_large": _INVALID,
    "unbroken_run_too_long": _INVALID,
    "model_not_found": _INVALID,
    "not_found": _INVALID,
    "method_not_allowed": _INVALID,
    "invalid_api_key": _UNAUTHORIZED,
    # the data plane: status and meaning in edge.http.messages.DATA_PLANE_CODES
    "too_many_connections": _UNAVAILABLE,
    # the gate's refusals
    "context_length_exceeded": _INVALID,
    "too_many_sequences": _INVALID,
    "tenant_limit_exceeded": _INVALID,
    "rate_limit_exceeded": _RATE,
    "server_is_overloaded": _UNAVAILABLE,
    # the engine, or we
    "count_failed": _SERVER,
    "upstream_failed": _SERVER,
    "internal_error": _SERVER,
}
# Only the head of a value that a stranger sent is repeated to him.
_SHOWN_CHARS = 60


class BadRequestError(InputError):
    """The request itself is at fault: HTTP 400, and the same request will never be accepted.

    `param` is the field at fault (a path such as `messages[0].content`), `code` a key of `ERROR_TYPES`.
    """

    status = HTTP_BAD_REQUEST

    def __init__(self, message: str, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.code = code

    def body(self) -> bytes:
        """The JSON body that the client gets."""
        return error_body(self.message, None, self.param, self.code)


class ModelNotFoundError(BadRequestError):
    """The engine does not serve the model that the request names: HTTP 404, as the engine itself would answer."""

    status = HTTP_NOT_FOUND


class CodedBodyError(BadRequestError):
    """The body is compressed: HTTP 415, as an engine that undoes it would run another body than the one counted."""

    status = HTTP_UNSUPPORTED_MEDIA

    def __init__(self) -> None:
        super().__init__("content-encoding is not accepted here; send the body as it is", None,
                         "unsupported_content_encoding")  # fmt: skip


class UnauthorizedError(BadRequestError):
    """The gate wants an API key, and this is none that it knows: HTTP 401."""

    status = HTTP_UNAUTHORIZED

    def __init__(self, message: str) -> None:
        super().__init__(message, None, "invalid_api_key")


def error_body(message: str, type: str | None, param: str | None, code: str) -> bytes:  # noqa: A002 - the API's word
    """The error object as JSON. `type` None: the one that `ERROR_TYPES` gives for `code`."""
    import orjson  # here: `kvbudget key` knows these errors, and works without the extra `gate`

    kind = type if type is not None else ERROR_TYPES.get(code, _INVALID)
    return orjson.dumps({"error": {"message": encodable(message), "type": kind, "param": param, "code": code}})


def context_length_message(
    limit_tokens: int, prompt_tokens: int, max_new_tokens: int, largest_max_tokens: int, *, field: str = "max_tokens"
) -> str:
    """The sentence of a `context_length_exceeded` refusal.

    All in tokens. `limit_tokens` is what one request may hold (prompt and output, all its sequences),
    `max_new_tokens` what was asked for per sequence, `largest_max_tokens` what would fit beside this prompt (0: none).
    """
    told = (
        f"This model's maximum context length is {limit_tokens} tokens. However, you requested {max_new_tokens} output "
        f"tokens and your prompt contains {prompt_tokens} input tokens, for a total of "
        f"{prompt_tokens + max_new_tokens} tokens. "
    )
    if largest_max_tokens > 0:
        return told + f"The largest {field} that fits this prompt is {largest_max_tokens}."
    return told + f"No {field} fits: shorten the prompt to fewer than {limit_tokens} tokens."


def shown(value: object) -> str:
    """A client's value, short enough and safe to repeat in a message."""
    text = repr(value) if not isinstance(value, (dict, list)) else f"a JSON {_json_name(value)}"
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."


def _json_name(value: object) -> str:
    return "object" if isinstance(value, dict) else "array"


def encodable(text: str) -> str:
    """Lone surrogates cannot be written as UTF-8; they become `?`."""
    return text.encode("utf-8", "replace").decode("utf-8")
