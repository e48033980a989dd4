"""What a request asks of the engine, whatever API it came by."""

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Final

from kvbudget.edge.openai.prompts import Prompt
from kvbudget.units import Tokens
from kvbudget.values import Value

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


class Ask(Value):
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

    _fields: ClassVar = (
        "surface", "model", "stream", "sequences", "max_new_tokens", "max_new_field", "prompt",
        "truncate_prompt_tokens", "body", "raw", "paced", "lead_events", "beam", "prompt_logprobs", "charge",
        "inexact", "bounded",
    )  # fmt: skip
    __slots__ = _fields

    def __init__(
        self,
        surface: Surface,
        model: str | None,
        stream: bool,
        sequences: int,
        max_new_tokens: Tokens | None,
        max_new_field: str,
        prompt: Prompt,
        truncate_prompt_tokens: Tokens | None,
        body: dict[str, object],
        raw: bytes,
        *,
        paced: bool = False,
        lead_events: int = 0,
        beam: bool = False,
        prompt_logprobs: bool = False,
        charge: Charge | None = None,
        inexact: bool = False,
        bounded: bool = False,
    ) -> None:
        self.surface: Final = surface
        self.model: Final = model
        self.stream: Final = stream
        self.sequences: Final = sequences
        self.max_new_tokens: Final = max_new_tokens
        self.max_new_field: Final = max_new_field
        self.prompt: Final = prompt
        self.truncate_prompt_tokens: Final = truncate_prompt_tokens
        self.body: Final = body
        self.raw: Final = raw
        self.paced: Final = paced
        self.lead_events: Final = lead_events
        self.beam: Final = beam
        self.prompt_logprobs: Final = prompt_logprobs
        self.charge: Final = charge
        self.inexact: Final = inexact
        self.bounded: Final = bounded
