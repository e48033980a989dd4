import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable

import pytest

from kvbudget.edge.openai.ask import Ask
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.tokens.count import Count
from kvbudget.edge.tokens.takeover import AGREEMENTS, DRIFTS, TEXT_EVERY, TRIAL_EVERY, WINDOW, WatchedCounter
from kvbudget.units import Tokens


class Says:
    """A counter that says what it is told to."""

    def __init__(self, name: str, tokens: int, *, later: bool) -> None:
        self.name = name
        self.tokens: int | None = tokens
        self.later = later
        self.exact = True
        self.asked = 0

    def count(self, ask: Ask) -> Count | Awaitable[Count]:
        self.asked += 1
        if self.tokens is None:
            raise BadRequestError("no such template")
        count = Count((Tokens(self.tokens),), self.exact)

        async def answer() -> Count:
            return count

        return answer() if self.later else count


@pytest.fixture
def local() -> Says:
    return Says("tokenizer", 5, later=False)


@pytest.fixture
def watched(local: Says) -> WatchedCounter:
    return WatchedCounter(local, Says("engine", 9, later=True))


def _tokens(counter: WatchedCounter, ask: Ask) -> int:
    async def run() -> Count:
        count = counter.count(ask)
        return await count if inspect.isawaitable(count) else count

    return asyncio.run(run()).prompt_tokens[0]


def _taken_over(watched: WatchedCounter) -> None:
    for _ in range(DRIFTS):
        watched.heed(5, 9)
    assert watched.engine_counts


def test_the_tokenizer_counts_while_the_engine_agrees(watched: WatchedCounter, chat: Callable[..., Ask]) -> None:
    for _ in range(100):
        watched.heed(5, 5)
    assert (_tokens(watched, chat("a")), watched.name) == (5, "tokenizer")
    assert watched.state() == {
        "counts": "tokenizer", "engine_took_over": False, "takeovers": 0, "compared": 100, "drifted": 0
    }  # fmt: skip


def test_a_difference_now_and_then_changes_nothing(watched: WatchedCounter) -> None:
    for _ in range(10):
        watched.heed(5, 6)
        for _ in range(WINDOW // (DRIFTS - 1)):
            watched.heed(5, 5)
    assert not watched.engine_counts
    assert watched.drifted == 10


def test_the_engine_counts_once_they_differ_often(
    watched: WatchedCounter, chat: Callable[..., Ask], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        _taken_over(watched)
    assert "/tokenize counts from now on" in caplog.text
    assert (_tokens(watched, chat("a")), watched.name) == (9, "engine")
    assert watched.state()["engine_took_over"] is True


def test_token_ids_are_counted_here_whoever_counts(watched: WatchedCounter, completions: Callable[..., Ask]) -> None:
    _taken_over(watched)
    assert isinstance(watched.count(completions([1, 2, 3])), Count)


def test_the_tokenizer_is_tried_now_and_then_and_counts_again_when_it_agrees_for_long(
    watched: WatchedCounter, local: Says, chat: Callable[..., Ask]
) -> None:
    _taken_over(watched)
    for _ in range(TRIAL_EVERY * AGREEMENTS):
        _tokens(watched, chat("a"))
    assert local.asked == AGREEMENTS
    assert watched.engine_counts  # it was tried, and was wrong each time
    local.tokens = 9
    for turn in range(TRIAL_EVERY * AGREEMENTS):
        assert watched.engine_counts, turn
        _tokens(watched, chat("a"))
    assert not watched.engine_counts


def test_it_takes_twice_as_long_each_time(watched: WatchedCounter, local: Says, chat: Callable[..., Ask]) -> None:
    local.tokens = 9
    for times in (1, 2, 4):
        _taken_over(watched)
        for _ in range(TRIAL_EVERY * AGREEMENTS * times - 1):
            _tokens(watched, chat("a"))
        assert watched.engine_counts
        _tokens(watched, chat("a"))
        assert not watched.engine_counts
    assert watched.takeovers == 3


def test_ids_are_forwarded_once_the_engine_has_agreed_and_some_texts_still_go_to_be_compared(
    watched: WatchedCounter, completions: Callable[..., Ask], chat: Callable[..., Ask]
) -> None:
    count = Count((Tokens(2),), True, b"\x01\x00\x00\x00\x02\x00\x00\x00")
    ask = completions("ab")
    assert watched.ids_to_forward(ask, count) is None  # nothing is known yet
    for _ in range(WINDOW):
        watched.heed(2, 2)
    sent = [watched.ids_to_forward(ask, count) for _ in range(TEXT_EVERY)]
    assert sent.count(None) == 1
    assert {ids for ids in sent if ids is not None} == {count.token_ids}
    others = [chat("ab"), completions(["ab", "cd"]), completions([1, 2]), completions("ab", echo=True),
              completions("ab", truncate_prompt_tokens=1)]  # fmt: skip
    assert not any(watched.ids_to_forward(other, count) for other in others)
    assert watched.ids_to_forward(ask, count._replace(exact=False)) is None
    watched.heed(2, 3)
    assert not any(watched.ids_to_forward(ask, count) for _ in range(TEXT_EVERY))


def test_neither_a_refusal_nor_a_bound_is_an_agreement(
    watched: WatchedCounter, local: Says, chat: Callable[..., Ask]
) -> None:
    _taken_over(watched)
    local.tokens = None
    for _ in range(TRIAL_EVERY * AGREEMENTS):
        assert _tokens(watched, chat("a")) == 9
    local.tokens, local.exact = 9, False
    for _ in range(TRIAL_EVERY * AGREEMENTS):
        assert _tokens(watched, chat("a")) == 9
    assert watched.engine_counts
