"""What a counter answers: tokens of each prompt, exact or a bound; and how it says that it could not."""

from collections.abc import Awaitable, Mapping, Sequence
from typing import ClassVar, Final, Protocol, cast

from kvbudget.edge.openai.ask import Ask
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.errors import KvbudgetError
from kvbudget.units import Tokens
from kvbudget.values import Value

# Of one prompt: numbers, or 32-bit numbers of this machine one after another.
TokenIds = Sequence[int] | bytes


class Count(Value):
    """Tokens of each prompt of the request, in order. Not `exact`: a proved upper bound.

    `token_ids`: those of the one prompt, if the counter has them at hand; never of a bound. `by_vocabulary`: this count
    first, and those by other models that may get the request; None if there are none.
    """

    _fields: ClassVar = ("prompt_tokens", "exact", "token_ids", "by_vocabulary")
    __slots__ = _fields

    def __init__(
        self,
        prompt_tokens: tuple[Tokens, ...],
        exact: bool,
        token_ids: TokenIds | None = None,
        by_vocabulary: "Mapping[object, Count] | None" = None,
    ) -> None:
        self.prompt_tokens: Final = prompt_tokens
        self.exact: Final = exact
        self.token_ids: Final = token_ids
        self.by_vocabulary: Final = by_vocabulary


class CountFailedError(KvbudgetError):
    """The counter could not count; the request is not at fault."""

    code = "count_failed"

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.code = "count_failed"  # compiled, the class has its base's


class Counter(Protocol):
    """One way to count prompts."""

    @property
    def name(self) -> str:
        """For logs and metrics."""

    def count(self, ask: Ask) -> Count | Awaitable[Count]:
        """The count at once when it is cheap, else an awaitable of it (on the running asyncio loop).

        Raises, or its awaitable raises, BadRequestError when the prompt is at fault and CountFailedError when the
        counter is.
        """


def counted(ask: Ask, lengths: tuple[int, ...], *, exact: bool, token_ids: TokenIds | None = None) -> Count:
    """A Count with the request's own truncation applied. Raises BadRequestError for a prompt without tokens."""
    if exact and min(lengths) == 0:
        raise BadRequestError("The prompt has no tokens", "prompt", "empty_prompt")
    limit = ask.truncate_prompt_tokens
    tokens = lengths if limit is None else tuple([min(n, limit) for n in lengths])
    return Count(cast("tuple[Tokens, ...]", tokens), exact, token_ids)
