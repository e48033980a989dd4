"""Prompts of an exact length, measured by whatever counts them."""

import asyncio
from collections.abc import Callable

import pytest

from kvbudget.edge.replay.prompts import CountError, PromptWriter

TEMPLATE_TOKENS = 9


def _writer(count: Callable[[str], int], seed: int = 0) -> tuple[PromptWriter, list[str]]:
    asked: list[str] = []

    async def counted(text: str) -> int:
        asked.append(text)
        return TEMPLATE_TOKENS + count(text)

    return PromptWriter(counted, seed), asked


def _by_words(text: str) -> int:
    return len(text.replace(".", " .").replace("!", " !").split())


def _by_bytes(text: str) -> int:
    return -(-len(text.encode()) // 4)


def _by_letters(text: str) -> int:
    """A tiny vocabulary: a token per two letters of a word."""
    return sum(-(-len(word) // 2) for word in text.split())


@pytest.mark.parametrize("count", [_by_words, _by_bytes, _by_letters])
@pytest.mark.parametrize("length", [12, 13, 57, 512, 4_001])
def test_a_prompt_has_exactly_the_wanted_length_in_every_order(count: Callable[[str], int], length: int) -> None:
    writer, _ = _writer(count)
    recipe = asyncio.run(writer.prepare(length))
    assert recipe.counted == length
    texts = {writer.text(length, index) for index in range(5)}
    assert {TEMPLATE_TOKENS + count(text) for text in texts} == {length}
    assert len(texts) > 1 or length < 15


def test_a_length_is_searched_once_and_with_few_questions() -> None:
    writer, asked = _writer(_by_bytes)
    asyncio.run(writer.prepare(3_000))
    questions = len(asked)
    asyncio.run(writer.prepare(3_000))
    assert len(asked) == questions < 30


def test_a_length_below_the_template_says_what_it_became() -> None:
    writer, _ = _writer(_by_words)
    recipe = asyncio.run(writer.prepare(4))
    assert recipe.counted == TEMPLATE_TOKENS + 1
    assert writer.text(4, 0) == "The"


def test_the_same_seed_writes_the_same_texts() -> None:
    def texts(seed: int) -> list[str]:
        writer, _ = _writer(_by_words, seed)
        asyncio.run(writer.prepare(60))
        return [writer.text(60, index) for index in range(3)]

    assert texts(1) == texts(1) != texts(2)


def test_lengths_that_cannot_be_counted_follow_from_those_that_were() -> None:
    async def limited(text: str) -> int:
        if len(text) > 2_000:
            raise CountError("too long")
        return TEMPLATE_TOKENS + 2 * len(text.split())

    writer = PromptWriter(limited, 0)

    async def prepare() -> None:
        await writer.prepare(100)
        assert (await writer.prepare(10_000)).counted is None

    asyncio.run(prepare())
    assert abs(2 * len(writer.text(10_000, 0).split()) + TEMPLATE_TOKENS - 10_000) <= 4


def test_without_a_counter_a_word_is_a_token() -> None:
    writer = PromptWriter(None, 0)
    asyncio.run(writer.prepare(40))
    assert len(writer.text(40, 0).split()) == 40
