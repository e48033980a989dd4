"""Which prompts are known to begin alike, and which are not."""

from array import array
from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.edge.openai.ask import Ask
from kvbudget.edge.tokens.count import Count
from kvbudget.edge.tokens.keys import MOST_TOKENS, PrefixKeys
from kvbudget.units import Tokens

AskOf = Callable[..., Ask]
IDS = list(range(1000, 1100))  # 100 tokens: six whole blocks of 16, the seventh holds the last token


def counted(ids: Any, *, exact: bool = True, length: int | None = None) -> Count:
    size = len(ids) if length is None else length
    return Count((Tokens(size),), exact, ids)


@pytest.fixture
def keys() -> PrefixKeys:
    return PrefixKeys(b"secret")


def test_prompts_that_begin_alike_have_the_same_first_keys_and_no_others(keys: PrefixKeys, chat: AskOf) -> None:
    one = keys.of(chat("x"), counted(IDS), 16)
    other = keys.of(chat("y"), counted([*IDS[:40], 7, *IDS[41:]]), 16)
    assert (len(one), len(set(one))) == (6, 6)
    assert one[:2] == other[:2]
    assert not set(one[2:]) & set(other[2:])
    assert keys.of(chat("x"), counted(IDS[:96]), 16) == one[:5]  # the last token is always computed
    assert keys.of(chat("x"), counted(IDS[:16]), 16) == ()


def test_ids_in_memory_and_ids_as_numbers_have_the_same_keys(keys: PrefixKeys, chat: AskOf) -> None:
    data = array("I", IDS).tobytes()
    assert keys.of(chat("x"), counted(data, length=100), 16) == keys.of(chat("x"), counted(IDS), 16)


@pytest.mark.parametrize(
    "members", [{"model": "lora"}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"model": "lora", "cache_salt": "a"}]
)
def test_what_an_engine_does_not_share_has_other_keys(keys: PrefixKeys, chat: AskOf, members: dict[str, str]) -> None:
    plain = keys.of(chat("x", model="base"), counted(IDS), 16)
    own = keys.of(chat("x", **{"model": "base", **members}), counted(IDS), 16)
    assert len(own) == 6
    assert not set(plain) & set(own)
    assert own == keys.of(chat("other words", **{"model": "base", **members}), counted(IDS), 16)


def test_two_processes_have_other_keys(chat: AskOf) -> None:
    assert not set(PrefixKeys().of(chat("x"), counted(IDS), 16)) & set(PrefixKeys().of(chat("x"), counted(IDS), 16))


def test_a_prompt_of_token_ids_has_the_keys_of_the_same_ids(keys: PrefixKeys, completions: AskOf) -> None:
    wanted = keys.of(completions("x"), counted(IDS), 16)
    for prompt in (IDS, [IDS]):
        assert keys.of(completions(prompt), Count((Tokens(100),), exact=True), 16) == wanted
    assert keys.of(completions([IDS, IDS]), Count((Tokens(100), Tokens(100)), exact=True), 16) == ()


@pytest.mark.parametrize(
    "members",
    [{"echo": True}, {"truncate_prompt_tokens": 100}, {"use_beam_search": True}, {"cache_salt": 7}],
)
def test_who_may_not_use_others_blocks_has_none(keys: PrefixKeys, completions: AskOf, members: dict[str, Any]) -> None:
    assert keys.of(completions(IDS, **members), counted(IDS), 16) == ()


@pytest.mark.parametrize(
    ("count", "tokens_per_key"),
    [
        (counted(IDS, exact=False), 16),
        (counted(None, length=100), 16),  # counted without ids
        (counted(IDS), 0),  # nothing is shared in this layout
        (counted(IDS), 100),  # no whole block without the last token
        (counted([*IDS, 1 << 32]), 16),
        (counted([*IDS, -1]), 16),
    ],
)
def test_what_cannot_be_told_for_certain_has_none(
    keys: PrefixKeys, chat: AskOf, count: Count, tokens_per_key: int
) -> None:
    assert keys.of(chat("x"), count, tokens_per_key) == ()


def test_a_very_long_prompt_has_keys_of_its_beginning_only(keys: PrefixKeys, chat: AskOf) -> None:
    ids = [5] * (MOST_TOKENS + 1000)
    for given in (ids, array("I", ids).tobytes()):
        assert len(keys.of(chat("x"), counted(given, length=len(ids)), 16)) == MOST_TOKENS // 16 - 1


def test_processes_that_agree_on_a_secret_have_the_same_keys(chat: AskOf) -> None:
    one, other, third = PrefixKeys(), PrefixKeys(), PrefixKeys()
    one.agreed = other.agreed = b"agreed"
    third.agreed = b"another"
    of_one = one.of(chat("x", model="m"), counted(IDS), 16)
    assert len(set(of_one)) == 6
    assert other.of(chat("y", model="m"), counted(array("I", IDS).tobytes(), length=100), 16) == of_one
    for different in (
        other.of(chat("x", model="lora"), counted(IDS), 16),
        other.of(chat("x", model="m", cache_salt="s"), counted(IDS), 16),
        third.of(chat("x", model="m"), counted(IDS), 16),
    ):
        assert not set(different) & set(of_one)
