"""Every API that is charged: its paths, how its bodies are read, how its errors look, where its usage stands.

A new API is a module of this package with a `parse`, a name in `Surface`, and a row here.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from kvbudget.edge.http.exchange import ErrorForm
from kvbudget.edge.http.messages import Headers
from kvbudget.edge.openai.body import read_object
from kvbudget.edge.openai.usage import Usage
from kvbudget.edge.surfaces import chat, completions, messages, pooling, responses, tgi
from kvbudget.edge.surfaces.ask import Ask, Surface
from kvbudget.edge.surfaces.dialects import ANTHROPIC, RESPONSES, TGI

Parse = Callable[[Surface, dict[str, object], bytes], Ask]
UsageReader = Callable[[bytes, Headers], Usage | None]


class Row(NamedTuple):
    """One API. `errors`: None is the OpenAI object. `usage`: None is `usage` as OpenAI's chat has it."""

    paths: tuple[str, ...]
    parse: Parse
    errors: ErrorForm | None = None
    usage: UsageReader | None = None


ROWS: Final[dict[Surface, Row]] = {
    Surface.CHAT: Row(("/v1/chat/completions",), chat.parse),
    Surface.COMPLETIONS: Row(("/v1/completions",), completions.parse),
    Surface.RESPONSES: Row(("/v1/responses",), responses.parse, RESPONSES, responses.usage),
    Surface.MESSAGES: Row(("/v1/messages",), messages.parse, ANTHROPIC, messages.usage),
    Surface.TGI_GENERATE: Row(("/generate",), tgi.parse, TGI, tgi.usage),
    Surface.TGI_GENERATE_STREAM: Row(("/generate_stream",), tgi.parse, TGI, tgi.usage),
    Surface.EMBEDDINGS: Row(("/v1/embeddings",), pooling.parse_inputs, None, pooling.usage),
    Surface.POOLING: Row(("/pooling",), pooling.parse_inputs, None, pooling.usage),
    Surface.CLASSIFY: Row(("/classify",), pooling.parse_inputs, None, pooling.usage),
    Surface.SCORE: Row(("/v1/score", "/score"), pooling.parse_pairs, None, pooling.usage),
    Surface.RERANK: Row(
        ("/v1/rerank", "/rerank", "/v2/rerank", "/v1/reranking"),  # the last is llama.cpp's other name of the first
        pooling.parse_pairs,
        None,
        pooling.usage,
    ),
}
SURFACES: Final[dict[str, Surface]] = {path: surface for surface, row in ROWS.items() for path in row.paths}


def parse_ask(surface: Surface, raw: bytes) -> Ask:
    """The Ask in a request body. Raises BadRequestError for everything that cannot be forwarded as counted."""
    return ROWS[surface].parse(surface, read_object(raw), raw)
