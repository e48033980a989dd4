import asyncio
import inspect
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deep_json import deep_json
from kvbudget.edge.openai import bytebound
from kvbudget.edge.openai.ask import Ask, Surface, parse_ask
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.tokens import bound
from kvbudget.edge.tokens.bound import BoundCounter, ThreadedBoundCounter
from kvbudget.edge.tokens.count import Count
from kvbudget.edge.tokens.tokenizer import TokenizerCounter

TEXTS = st.text(max_size=60) | st.text(st.sampled_from("\u0344\ufb2c\U0001d160\ue000"), max_size=30)
JSON = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(st.tuples(TEXTS, st.lists(st.dictionaries(TEXTS, JSON, max_size=2), max_size=2)), min_size=1, max_size=3),
    st.lists(st.dictionaries(TEXTS, JSON, max_size=3), max_size=2),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_chat_with_tools_and_calls_counts_more_than_its_bound(
    counter: TokenizerCounter, chat: Callable[..., Ask], turns: list[tuple[str, list[Any]]], schemas: list[Any]
) -> None:
    messages = [
        {
            "role": "assistant",
            "content": text,
            "tool_calls": [{"function": {"name": "f", "arguments": a}} for a in calls],
        }
        for text, calls in turns
    ]
    tools = [{"function": {"name": "f", "description": "d", "parameters": schema}} for schema in schemas]
    ask = chat(messages, **({"tools": tools} if tools else {}))
    exact = counter.count(ask)
    assert isinstance(exact, Count)
    with pytest.MonkeyPatch.context() as patch:
        # What this small template needs; the real allowances would hide what the request's own bytes lack.
        patch.setattr(bound, "TEMPLATE_TOKENS_PER_REQUEST", 30)
        patch.setattr(bound, "TEMPLATE_TOKENS_WITH_TOOLS", 30)
        patch.setattr(bound, "TEMPLATE_TOKENS_PER_MESSAGE", 10)
        patch.setattr(bound, "TEMPLATE_TOKENS_PER_TOOL", 2)
        assert exact.prompt_tokens <= BoundCounter().count(ask).prompt_tokens


@given(st.lists(TEXTS, min_size=1, max_size=3))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_text_counts_more_than_its_bound(
    counter: TokenizerCounter, completions: Callable[..., Ask], texts: list[str]
) -> None:
    ask = completions(texts)
    exact, limit = counter.count(ask), BoundCounter().count(ask)
    assert isinstance(exact, Count)
    assert all(n <= most for n, most in zip(exact.prompt_tokens, limit.prompt_tokens, strict=True))


def test_tools_calls_and_template_arguments_raise_the_bound(chat: Callable[..., Ask]) -> None:
    plain = BoundCounter().count(chat("a")).prompt_tokens[0]
    tool = {"function": {"name": "f", "description": "d" * 5000}}
    call = {"function": {"name": "f", "arguments": "x" * 5000}}
    for ask in (
        chat("a", tools=[tool]),
        chat([{"role": "assistant", "tool_calls": [call]}]),
        chat("a", documents=[{"text": "d" * 5000}]),
    ):
        assert BoundCounter().count(ask).prompt_tokens[0] >= plain + 5000


def test_a_bound_is_never_called_exact_but_token_ids_are(completions: Callable[..., Ask]) -> None:
    assert not BoundCounter().count(completions("a")).exact
    assert BoundCounter().count(completions([1, 2])) == Count((2,), True)  # type: ignore[arg-type]


def test_raw_text_costs_its_bytes_and_a_chat_the_template_as_well(
    chat: Callable[..., Ask], completions: Callable[..., Ask]
) -> None:
    assert BoundCounter().count(completions("a" * 1000)).prompt_tokens == (1004,)
    charged = BoundCounter().count(chat("a" * 1000)).prompt_tokens[0] - 1000
    assert bound.TEMPLATE_TOKENS_PER_REQUEST < charged < bound.TEMPLATE_TOKENS_PER_REQUEST + 200


def test_every_surface_has_a_bound() -> None:
    for surface, body in (
        (Surface.RESPONSES, {"input": "a" * 100}),
        (Surface.MESSAGES, {"messages": [{"role": "user", "content": "a" * 100}], "max_tokens": 1}),
        (Surface.TGI_GENERATE, {"inputs": "a" * 100}),
    ):
        count = BoundCounter().count(parse_ask(surface, json.dumps(body).encode()))
        assert count.prompt_tokens[0] >= 100


def test_truncation_caps_the_bound(completions: Callable[..., Ask]) -> None:
    assert BoundCounter().count(completions("a" * 100, truncate_prompt_tokens=5)).prompt_tokens == (5,)


@pytest.mark.parametrize(
    ("surface", "body"),
    [
        (Surface.CHAT, {"messages": [{"role": "user", "content": "a" * 100}]}),
        (Surface.COMPLETIONS, {"prompt": "a" * 100}),
        (Surface.RESPONSES, {"input": [{"role": "user", "content": "a" * 100}]}),
        (Surface.MESSAGES, {"messages": [{"role": "user", "content": "a" * 100}], "max_tokens": 1}),
        (Surface.TGI_GENERATE, {"inputs": "a" * 100}),
    ],
)
def test_large_bodies_are_bounded_in_a_thread_and_small_ones_at_once(
    monkeypatch: pytest.MonkeyPatch, surface: Surface, body: dict[str, Any]
) -> None:
    ask = parse_ask(surface, json.dumps(body).encode())
    expected = BoundCounter().count(ask)
    assert ThreadedBoundCounter(inline_bytes=len(ask.raw) + 1).count(ask) == expected
    counter = ThreadedBoundCounter(inline_bytes=len(ask.raw))
    threads: list[int] = []

    def counted_where(self: BoundCounter, ask: Ask) -> Count:
        threads.append(threading.get_ident())
        return expected

    monkeypatch.setattr(BoundCounter, "count", counted_where)

    async def later() -> Count:
        counting = counter.count(ask)
        assert inspect.isawaitable(counting)
        return await counting

    try:
        assert asyncio.run(later()) == expected
    finally:
        counter.close()
    assert threads != [threading.get_ident()]


def test_reading_a_body_measures_nothing_that_a_thread_could(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(text: str) -> int:
        raise AssertionError("measured")

    body = {"input": [{"role": "user", "content": "a"}], "instructions": "b", "tools": [{"type": "function"}]}
    with monkeypatch.context() as patch:
        patch.setattr(bytebound, "text_bound", measured)
        patch.setattr(bytebound, "_scalars_bound", measured)
        ask = parse_ask(Surface.RESPONSES, json.dumps(body).encode())
    assert BoundCounter().count(ask).prompt_tokens[0] > 0


def test_an_absurd_structure_is_refused_by_the_thread_as_well() -> None:
    tools = [{"type": "function", "parameters": deep_json(100_000)}]
    ask = parse_ask(Surface.RESPONSES, json.dumps({"input": "a", "tools": tools}).encode())
    counter = ThreadedBoundCounter(inline_bytes=1)

    async def later() -> None:
        counting = counter.count(ask)
        assert inspect.isawaitable(counting)
        await counting

    try:
        with pytest.raises(BadRequestError) as caught:
            asyncio.run(later())
    finally:
        counter.close()
    assert caught.value.code == "prompt_too_large"


def test_a_short_chat_without_tools_is_not_charged_a_tool_preamble(chat: Callable[..., Ask]) -> None:
    assert BoundCounter().count(chat("hi")).prompt_tokens[0] < 400
    tools = [{"function": {"name": "f"}}]
    assert BoundCounter().count(chat("hi", tools=tools)).prompt_tokens[0] > 1024
