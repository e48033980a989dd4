from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.edge.openai.ask import Ask, Surface
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.openai.prompts import ChatPrompt, TextPrompt, TokenPrompt
from kvbudget.edge.openai.usage import Usage
from kvbudget.edge.surfaces import charges, pooling

Parse = Callable[..., Ask]
INPUTS = [Surface.EMBEDDINGS, Surface.POOLING, Surface.CLASSIFY]


@pytest.mark.parametrize("surface", INPUTS)
def test_texts_ids_and_messages_are_prompts_that_nothing_is_generated_for(parse: Parse, surface: Surface) -> None:
    ask = parse(surface, model="m", input=["a", "b"])
    assert ask.prompt == TextPrompt(("a", "b"), add_special_tokens=True)
    assert (ask.max_new_tokens, ask.max_new_field, ask.charge, ask.inexact) == (1, "", charges.prefill_only, False)
    assert parse(surface, input=[[1, 2], [3]]).prompt == TokenPrompt((2, 1))
    for field in ("messages", "input"):
        chat = parse(surface, **{field: [{"role": "user", "content": "hi"}]}).prompt
        assert isinstance(chat, ChatPrompt)
        assert not chat.add_generation_prompt  # vLLM's default for these


def test_more_texts_than_are_worth_a_count_are_bounded(parse: Parse) -> None:
    assert not parse(Surface.EMBEDDINGS, input=["a"] * pooling.COUNTED_TEXTS).bounded
    assert parse(Surface.EMBEDDINGS, input=["a"] * (pooling.COUNTED_TEXTS + 1)).bounded
    assert len(parse(Surface.EMBEDDINGS, input=["a"] * 5000).prompt.texts) == 5000  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "members",
    [
        {"messages": [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "x"}}]}]},
        {"data": {"an engine's": "own processor"}},
        {"messages": [[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]]},
        {"input": [[{"role": "user", "content": "a"}]]},
    ],
)
def test_what_cannot_be_counted_is_charged_as_windows(parse: Parse, members: dict[str, Any]) -> None:
    ask = parse(Surface.POOLING, **members)
    assert (ask.charge, ask.inexact) == (charges.windows, True)


def test_a_score_is_of_each_pair(parse: Parse) -> None:
    for left, right in (("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2")):
        ask = parse(Surface.SCORE, **{left: "q", right: ["a", "b"]})
        assert ask.prompt == TextPrompt(("q", "a", "b"), add_special_tokens=True)
        assert (ask.charge, ask.inexact) == (charges.pairs, True)
    assert parse(Surface.RERANK, query="q", documents="a").prompt == TextPrompt(("q", "a"), add_special_tokens=True)
    matched = parse(Surface.SCORE, text_1=["q", "r"], text_2=["a", "b"])
    assert (matched.prompt, matched.charge) == (TextPrompt(("q", "r", "a", "b"), True), charges.matched_pairs)


def test_a_long_query_is_kept_once_however_many_documents_there_are(parse: Parse) -> None:
    ask = parse(Surface.RERANK, query="q" * 1_000_000, documents=["d"] * 10_000)
    assert isinstance(ask.prompt, TextPrompt)
    assert sum(len(text) for text in ask.prompt.texts) == 1_010_000
    assert ask.bounded


def test_a_score_of_content_parts_is_charged_as_windows(parse: Parse) -> None:
    image = {"content": [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "y"}]}
    assert parse(Surface.RERANK, query="q", documents=image).charge is charges.windows
    assert parse(Surface.RERANK, query="q", documents=["a", image]).charge is charges.windows


@pytest.mark.parametrize(
    ("surface", "members"),
    [
        (Surface.EMBEDDINGS, {"input": []}),
        (Surface.EMBEDDINGS, {"input": [1, "a"]}),
        (Surface.EMBEDDINGS, {"input": "a", "truncate_prompt_tokens": -2}),
        (Surface.EMBEDDINGS, {"messages": [{"content": "a"}]}),
        (Surface.SCORE, {"text_1": "a"}),
        (Surface.SCORE, {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}),
        (Surface.RERANK, {"query": "a"}),
        (Surface.RERANK, {"query": "a", "documents": []}),
    ],
)
def test_a_body_without_prompts_is_refused(parse: Parse, surface: Surface, members: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError):
        parse(surface, **members)


def test_truncation_is_kept_and_to_the_window_it_is_a_bound(parse: Parse) -> None:
    kept = parse(Surface.EMBEDDINGS, input="a", truncate_prompt_tokens=5)
    assert (kept.truncate_prompt_tokens, kept.inexact) == (5, False)
    to_window = parse(Surface.EMBEDDINGS, input="a", truncate_prompt_tokens=-1)
    assert (to_window.truncate_prompt_tokens, to_window.inexact) == (None, True)


def test_no_length_is_learned_from_what_generates_nothing() -> None:
    tail = b'{"data":[],"usage":{"prompt_tokens":5,"total_tokens":5}}'
    assert pooling.usage(tail, []) == Usage(5, None, None)  # type: ignore[arg-type]
    assert pooling.usage(b"{}", []) is None
