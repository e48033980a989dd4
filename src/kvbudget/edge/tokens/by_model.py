"""Which counter counts: that of the model that is asked for; where several models may take a request, each by its own.

A stand-in with another vocabulary makes more or fewer tokens of the same text, so the request is counted for it as well
when it arrives, and charged there by that count. Instances of one vocabulary share one counter.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import NamedTuple, cast

from kvbudget.edge.openai.ask import Ask
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.tokens.bound import ThreadedBoundCounter
from kvbudget.edge.tokens.count import Count, Counter, CountFailedError, TokenIds
from kvbudget.edge.tokens.counting import watched
from kvbudget.gate.fleet.member import Member


class Vocabulary(NamedTuple):
    """What makes two instances count alike. `of`: the model, where its engine counts."""

    tokenizer: str
    chat_template: str | None = None
    template_kwargs: str = "{}"
    image_tokens: int | None = None
    of: str = ""


class CounterByModel:
    """Counters of a fleet, by instance name; instances that count alike have the same one."""

    def __init__(self, members: Sequence[Member], counters: Mapping[str, Counter]) -> None:
        self._members = members
        self.counters = counters
        self._bound = ThreadedBoundCounter()

    @property
    def name(self) -> str:
        """Of all counters, with whom they count for where there are several."""
        told: dict[str, list[str]] = {}
        for instance, counter in self.counters.items():
            told.setdefault(counter.name, []).append(instance)
        return (
            next(iter(told)) if len(told) == 1 else ", ".join(f"{name} ({' '.join(of)})" for name, of in told.items())
        )

    def count(self, ask: Ask) -> Count | Awaitable[Count]:
        """By the vocabulary of the model; `Count.by_vocabulary` has also those of its stand-ins that count otherwise.

        Raises what the counter of the model raises. Where there are several, one that cannot count gets the bound, and
        a stand-in whose model cannot have such a prompt gets none.
        """
        chosen = self._chosen(ask)
        if len(chosen) == 1:
            return next(iter(chosen.values())).count(ask)
        counts: list[Count | Awaitable[Count] | None] = []
        for counter in chosen.values():
            try:
                counts.append(counter.count(ask))
            except BadRequestError:
                if not counts:
                    raise
                counts.append(None)
            except CountFailedError:
                counts.append(self._bound.count(ask))
        if all(count is None or isinstance(count, Count) for count in counts):
            return _joined(dict(zip(chosen, cast("list[Count | None]", counts), strict=True)))
        return self._later(ask, list(chosen), counts)

    def ids_to_forward(self, ask: Ask, count: Count) -> TokenIds | None:
        """As the counter that counted: `WatchedCounter.ids_to_forward`."""
        own = watched(next(iter(self._chosen(ask).values())))
        return None if own is None else own.ids_to_forward(ask, count)

    def heed(self, counted: int, told: int, instance: str) -> None:
        """A finished request had `counted` prompt tokens by the vocabulary of an instance, and `told` by its engine."""
        own = watched(self.counters[instance])
        if own is not None:
            own.heed(counted, told)

    def _chosen(self, ask: Ask) -> dict[object, Counter]:
        """By vocabulary, all by which to count: that of the model first, of those who serve it the one that is up.
        Never empty: whom nobody serves is refused without a count, or is counted for its own sake."""
        model = ask.model
        serving = [member for member in self._members if member.serves(model)]
        standing_in = [member for member in self._members if member.stands_in_for(model) and member not in serving]
        serving.sort(key=lambda member: not member.in_service)
        chosen: dict[object, Counter] = {}
        for member in [*serving, *standing_in] or self._members[:1]:
            chosen.setdefault(member.vocabulary, self.counters[member.name])
        return chosen

    def _later(
        self, ask: Ask, vocabularies: list[object], counts: list[Count | Awaitable[Count] | None]
    ) -> Awaitable[Count]:
        # Tasks, begun now: a coroutine that is cancelled before it ran would leave those in it never awaited.
        tasks = {
            number: asyncio.ensure_future(count)
            for number, count in enumerate(counts)
            if count is not None and not isinstance(count, Count)
        }
        for task in tasks.values():
            task.add_done_callback(_seen)

        async def all_of_them() -> Count:
            try:
                for number, task in tasks.items():
                    counts[number] = await self._settled(task, ask, is_first=number == 0)
            finally:
                for task in tasks.values():
                    task.cancel()
            return _joined(dict(zip(vocabularies, cast("list[Count | None]", counts), strict=True)))

        return all_of_them()

    async def _settled(self, task: "asyncio.Future[Count]", ask: Ask, *, is_first: bool) -> Count | None:
        try:
            return await task
        except BadRequestError:
            if is_first:
                raise
            return None
        except CountFailedError:
            bound = self._bound.count(ask)
            return bound if isinstance(bound, Count) else await bound


def _joined(counts: dict[object, Count | None]) -> Count:
    """The first one's, with all."""
    had = {vocabulary: count for vocabulary, count in counts.items() if count is not None}
    first = next(iter(had.values()))
    return first._replace(by_vocabulary=had)


def _seen(task: "asyncio.Future[Count]") -> None:
    if not task.cancelled():
        task.exception()  # told by whoever awaits it; if nobody does any more, it is of no interest
