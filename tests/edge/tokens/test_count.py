from collections.abc import Callable

import pytest

from kvbudget.edge.openai.ask import Ask
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.tokens.bound import BoundCounter
from kvbudget.edge.tokens.count import Counter, CountFailedError, counted
from kvbudget.edge.tokens.engine import EngineCounter
from kvbudget.edge.tokens.tokenizer import TokenizerCounter


def test_the_three_counters_are_counters(counter: TokenizerCounter) -> None:
    async def post(path: str, body: bytes) -> tuple[int, bytes]:
        return 200, b""

    counters: list[Counter] = [counter, BoundCounter(), EngineCounter(post)]
    assert [each.name for each in counters] == ["tokenizer", "bound", "engine"]


def test_an_exact_count_of_nothing_is_an_empty_prompt(completions: Callable[..., Ask]) -> None:
    with pytest.raises(BadRequestError) as caught:
        counted(completions("a"), (3, 0), exact=True)
    assert caught.value.code == "empty_prompt"


def test_a_failed_count_has_its_own_code() -> None:
    assert CountFailedError("x").code == "count_failed"
