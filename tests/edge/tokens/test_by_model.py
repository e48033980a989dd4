"""Which counters are asked for a request, in which order, and what becomes of those that fail."""

import asyncio
import gc
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest

from kvbudget.edge.openai.ask import Ask, Surface, parse_ask
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.tokens.by_model import CounterByModel
from kvbudget.edge.tokens.count import Count, CountFailedError
from kvbudget.units import Tokens

ASK = parse_ask(Surface.COMPLETIONS, b'{"model": "q", "prompt": "four words and more", "max_tokens": 4}')
BOUND = Count((Tokens(len("four words and more") + 4),), exact=False)
Made = int | Exception


class Told:
    """A counter that says what it is told to. `later`: not at once."""

    def __init__(self, says: Made, *, later: bool = False) -> None:
        self.says = says
        self.later = later
        self.name = "told"
        self.asked = 0

    def count(self, ask: Ask) -> Count | Awaitable[Count]:
        self.asked += 1
        return self._awaited() if self.later else self._said()

    def _said(self) -> Count:
        if isinstance(self.says, Exception):
            raise self.says
        return exact(self.says)

    async def _awaited(self) -> Count:
        await asyncio.sleep(0)
        return self._said()


def exact(tokens: int) -> Count:
    return Count((Tokens(tokens),), exact=True)


def member(name: str, *, serves: str = "", stands_in: str = "", up: bool = True, vocabulary: str = "") -> Any:
    return SimpleNamespace(
        name=name, vocabulary=vocabulary or name, in_service=up,
        serves=lambda model: model in (None, serves), stands_in_for=lambda model: model == stands_in,
    )  # fmt: skip


def two(own: Made, other: Made, *, later: bool = False) -> CounterByModel:
    members = [member("b", serves="l", stands_in="q"), member("a", serves="q")]
    return CounterByModel(members, {"a": Told(own, later=later), "b": Told(other, later=later)})


def counted(counter: CounterByModel, ask: Ask = ASK) -> Count:
    async def count() -> Count:
        told = counter.count(ask)
        return told if isinstance(told, Count) else await told

    return asyncio.run(count())


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    ("other", "there"),
    [(9, exact(9)), (CountFailedError("no"), BOUND), (BadRequestError("no", None, "x"), None)],
)
def test_the_model_s_own_count_comes_first_and_a_stand_in_s_beside_it(
    other: Made, there: Count | None, later: bool
) -> None:
    count = counted(two(5, other, later=later))
    assert (count.prompt_tokens, count.exact) == ((5,), True)
    assert count.by_vocabulary is not None
    assert list(count.by_vocabulary.items()) == [("a", exact(5)), *([] if there is None else [("b", there)])]


@pytest.mark.parametrize("later", [False, True])
def test_a_model_that_cannot_be_counted_is_bounded_and_one_that_refuses_is_heard(later: bool) -> None:
    count = counted(two(CountFailedError("no"), 9, later=later))
    assert count.by_vocabulary == {"a": BOUND, "b": exact(9)}
    assert (count.prompt_tokens, count.exact) == (BOUND.prompt_tokens, False)
    with pytest.raises(BadRequestError, match="unreadable"):
        counted(two(BadRequestError("unreadable", None, "x"), 9, later=later))


def test_who_alone_may_get_it_is_asked_and_raises_by_itself() -> None:
    counter = two(5, 9)
    count = counted(counter, ASK._replace(model="l"))
    assert (count, count.by_vocabulary) == (exact(9), None)
    assert counter.counters["a"].asked == 0  # type: ignore[attr-defined]
    with pytest.raises(CountFailedError):
        counted(two(5, CountFailedError("no")), ASK._replace(model="l"))


def test_of_two_that_count_alike_the_one_that_is_up_counts_once() -> None:
    members = [member("a", serves="q", up=False, vocabulary="v"), member("b", serves="q", vocabulary="v")]
    counters = {"a": Told(1), "b": Told(2)}
    assert counted(CounterByModel(members, counters)) == exact(2)
    assert (counters["a"].asked, counters["b"].asked) == (0, 1)


def test_no_model_may_mean_any_and_one_that_nobody_has_is_counted_by_the_first() -> None:
    counter = two(5, 9)
    anybody = counted(counter, ASK._replace(model=None)).by_vocabulary
    assert anybody == {"b": exact(9), "a": exact(5)}
    assert counted(counter, ASK._replace(model="nobody's")) == exact(9)


def test_a_count_that_nobody_waits_for_any_more_leaves_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    async def cancel() -> None:
        for own in (5, CountFailedError("no"), BadRequestError("no", None, "x")):
            told = two(own, CountFailedError("no"), later=True).count(ASK)
            assert not isinstance(told, Count)
            counting = asyncio.ensure_future(told)
            counting.cancel()  # before it ran at all
            await asyncio.gather(counting, return_exceptions=True)
            for _ in range(5):
                await asyncio.sleep(0)
        gc.collect()

    asyncio.run(cancel())
    assert caplog.records == []


def test_counters_are_named_once_each() -> None:
    one, other = Told(1), Told(2)
    members = [member(name) for name in "abc"]
    assert CounterByModel(members, {"a": one, "b": one, "c": one}).name == "told"
    other.name = "engine"
    assert CounterByModel(members, {"a": one, "b": other, "c": one}).name == "told (a c), engine (b)"
