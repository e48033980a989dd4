"""How an error looks to the clients of each API: the whole answer's body, and the last event of a stream.

Statuses and headers are the same everywhere; only the words' form differs.
"""

import re

import orjson

from kvbudget.edge.http.exchange import ErrorForm
from kvbudget.edge.openai.errors import encodable, error_body

_OVER = re.compile(
    r"maximum context length is (\d+) tokens\. However, you requested (\d+) output tokens and your prompt contains "
    r"(\d+) input tokens"
)
# platform.claude.com, API errors; vLLM 0.32 sends its own types in this place.
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
# text-generation-inference 3 router/src/infer/mod.rs; it answers validation with 422, we keep our statuses.
_TGI_TYPES = {429: "overloaded", 503: "overloaded", 529: "overloaded"}


class OpenAI:
    """`{"error": {"message", "type", "param", "code"}}` with string codes."""

    def body(self, status: int, code: str, message: str, *, param: str | None = None, request_id: bytes = b"") -> bytes:
        """The JSON of a whole answer."""
        return error_body(message, None, param, code)

    def event(self, code: str, message: str) -> bytes:
        """The event that ends a stream which cannot be completed."""
        return b"data: " + error_body(message, None, None, code) + b"\n\n"


class Responses(OpenAI):
    """As OpenAI's; the stream's events are typed, so its error is too."""

    def event(self, code: str, message: str) -> bytes:
        """`sequence_number` must be there for the official client; which one the engine had come to is not known."""
        event = {"type": "error", "code": code, "message": encodable(message), "param": None, "sequence_number": 0}
        return b"event: error\ndata: " + orjson.dumps(event) + b"\n\n"


class Anthropic:
    """`{"type": "error", "error": {"type", "message"}, "request_id"}`."""

    def body(self, status: int, code: str, message: str, *, param: str | None = None, request_id: bytes = b"") -> bytes:
        """The JSON of a whole answer."""
        kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
        error = {"type": kind, "message": encodable(_anthropic_words(message))}
        return orjson.dumps({"type": "error", "error": error, "request_id": request_id.decode("latin-1") or None})

    def event(self, code: str, message: str) -> bytes:
        """As the API's own: an `error` event."""
        error = {"type": "error", "error": {"type": "api_error", "message": encodable(message)}}
        return b"event: error\ndata: " + orjson.dumps(error) + b"\n\n"


class Tgi:
    """`{"error", "error_type"}`, flat."""

    def body(self, status: int, code: str, message: str, *, param: str | None = None, request_id: bytes = b"") -> bytes:
        """The JSON of a whole answer."""
        kind = _TGI_TYPES.get(status, "validation" if status < 500 else "generation")
        return orjson.dumps({"error": encodable(message), "error_type": kind})

    def event(self, code: str, message: str) -> bytes:
        """As TGI's own: the same object as an event."""
        return b"data:" + orjson.dumps({"error": encodable(message), "error_type": "generation"}) + b"\n\n"


def _anthropic_words(message: str) -> str:
    """Before our own sentence the one that Anthropic's API has: clients that shorten by themselves look for it."""
    over = _OVER.search(message)
    if over is None:
        return message
    limit, output, prompt = map(int, over.groups())
    if prompt >= limit:
        return f"prompt is too long: {prompt} tokens > {limit - 1} maximum. {message}"
    return (
        f"input length and `max_tokens` exceed context limit: {prompt} + {output} > {limit}, decrease input length or "
        f"`max_tokens` and try again. {message}"
    )


OPENAI: ErrorForm = OpenAI()
RESPONSES: ErrorForm = Responses()
ANTHROPIC: ErrorForm = Anthropic()
TGI: ErrorForm = Tgi()
