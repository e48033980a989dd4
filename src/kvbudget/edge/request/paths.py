"""Which paths are charged to the KV pool, which pass to the engine without a charge, and that nothing slips between."""

import re
from typing import Final

from kvbudget.edge.http.exchange import ErrorForm
from kvbudget.edge.openai.ask import SURFACES, Surface
from kvbudget.edge.surfaces.dialects import ANTHROPIC
from kvbudget.edge.surfaces.table import ROWS

CHARGED: Final[dict[bytes, Surface]] = {path.encode(): surface for path, surface in SURFACES.items()}
_ANTHROPICS: Final = b"/v1/messages/"
COUNT_TOKENS: Final = b"/v1/messages/count_tokens"
_OUTSIDE_V1: Final = frozenset({b"/tokenize", b"/detokenize", b"/version"})
# Plain characters only: an engine decodes %63 to "c" and drops a fragment, and what passes here must not turn into a
# charged path there.
_PLAIN_PATH: Final = re.compile(rb"(?:/[A-Za-z0-9_~:@-][A-Za-z0-9._~:@-]*)+")
# Paths below a charged one that hold no KV block in vLLM 0.32; anything else there (`/batch`) generates.
_FREE_BELOW_CHARGED: Final = re.compile(
    rb"/v1/messages/(count_tokens|render)|/v1/(chat/)?completions/(de)?render|/v1/responses/[^/]+(/cancel|/input_items)?"
)


def errors_of(target: bytes) -> ErrorForm | None:
    """In what form the clients of a path read errors, whether it is served or not. None: OpenAI's."""
    path = target.partition(b"?")[0]
    surface = CHARGED.get(path)
    if surface is not None:
        return ROWS[surface].errors
    return ANTHROPIC if path.startswith(_ANTHROPICS) else None


def passes(path: bytes) -> bool:
    """Models, tokenize and the rest under /v1; nothing that an engine could read as a charged path."""
    if not _PLAIN_PATH.fullmatch(path) or not (path.startswith(b"/v1/") or path in _OUTSIDE_V1):
        return False
    lower = path.lower()  # routers that do not mind the case exist; this path is not served by us
    if lower in CHARGED:
        return False
    below_charged = any(lower.startswith(charged + b"/") for charged in CHARGED)
    return not below_charged or _FREE_BELOW_CHARGED.fullmatch(path) is not None
