"""What a request asks of the engine, whatever API it came by."""

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from kvbudget.edge.openai.prompts import Prompt
from kvbudget.units import Tokens

if TYPE_CHECKING:
    from kvbudget.gate.gate import Gate

# (the ask, tokens of its prompts, the gate) -> tokens that are charged: for requests that hold something else than
# their prompts and what they generate.
Charge = Callable[["Ask", tuple[Tokens, ...], "Gate"], tuple[Tokens, ...]]


class Surface(StrEnum):
    """The APIs whose requests take KV cache; what each is, `surfaces.table.ROWS` tells."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    TGI_GENERATE = "tgi_generate"
    TGI_GENERATE_STREAM = "tgi_generate_stream"
    EMBEDDINGS = "embeddings"
    POOLING = "pooling"
    CLASSIFY = "classify"
    SCORE = "score"
    RERANK = "rerank"


class Ask(NamedTuple):
    """One accepted request.

    `sequences` is how many the engine holds per prompt (n, best_of, beam width). `max_new_tokens` is per sequence, None
    when the client leaves it open. `max_new_field` is where the cap is written (`parameters.max_new_tokens`: nested;
    empty: nowhere). `truncate_prompt_tokens`: the engine keeps at most that many tokens of each prompt. `raw` is the
    body as it came.

    `paced`: it streams, and one event is one token, the first `lead_events` aside. `beam`: beam search of that width.
    `prompt_logprobs`: logprobs of its prompt are asked for. `charge`: how what it holds follows from its count, if not
    by prompt and output. `inexact`: that charge is a bound, however exactly the prompt is counted. `bounded`: a bound
    of its tokens is enough; a count would cost more than it is worth.
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
    paced: bool = False
    lead_events: int = 0
    beam: bool = False
    prompt_logprobs: bool = False
    charge: Charge | None = None
    inexact: bool = False
    bounded: bool = False
