"""Counts of real vocabularies beside tokenizers that are not ours: Hugging Face, splintr, sentencepiece."""

import json
import random
from array import array
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceProcessor
from splintr import Tokenizer as Splintr
from tokenizers import Tokenizer

import vocabularies
from kvbudget.edge.openai.ask import Ask, Surface, parse_ask
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.tokens.bound import BoundCounter
from kvbudget.edge.tokens.count import Count
from kvbudget.edge.tokens.selftest import self_test_strings
from kvbudget.edge.tokens.tokenizer import TokenizerCounter
from kvbudget.units import Tokens

FAMILIES = sorted(vocabularies.BUILDERS)
# (before a message, after it, before the answer): control tokens where each family has them.
FORMS = {
    "qwen3": ("<|im_start|>{}\n", "<|im_end|>\n", "<|im_start|>assistant\n"),
    "llama3": (
        "<|start_header_id|>{}<|end_header_id|>\n\n", "<|eot_id|>", "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "gpt-oss": ("<|start|>{}<|message|>", "<|end|>", "<|start|>assistant"),
    "deepseek": ("<｜User｜>{}", "<｜end▁of▁sentence｜>", "<｜Assistant｜>"),
    "gemma3": ("<start_of_turn>{}\n", "<end_of_turn>\n", "<start_of_turn>model\n"),
    "mistral-v3": ("[INST]{} ", "[/INST]", "</s>"),
}  # fmt: skip
CHATS = 60


def _template(family: str) -> str:
    before, after, answer = FORMS[family]
    head, _, tail = before.partition("{}")
    turn = f"{json.dumps(head)} + m.role + {json.dumps(tail)} + m.content + {json.dumps(after)}"
    return f"{{% for m in messages %}}{{{{ {turn} }}}}{{% endfor %}}{{{{ {json.dumps(answer)} }}}}"


def _by_hand(family: str, messages: list[dict[str, str]]) -> str:
    before, after, answer = FORMS[family]
    return "".join(before.format(m["role"]) + m["content"] + after for m in messages) + answer


@cache
def _folder(family: str) -> Path:
    return vocabularies.vocabulary(family)


@cache
def _counter(family: str) -> TokenizerCounter:
    return TokenizerCounter.load(_folder(family), chat_template=_template(family), deadline_s=60)


@cache
def _reference(family: str) -> Tokenizer:
    return Tokenizer.from_file(str(_folder(family) / "tokenizer.json"))


def _ask(messages: list[dict[str, str]]) -> Ask:
    return parse_ask(Surface.CHAT, json.dumps({"messages": messages}).encode())


def _count(family: str, ask: Ask) -> Count:
    count = _counter(family).count(ask)
    assert isinstance(count, Count)
    return count


def _strings(family: str) -> list[str]:
    added = [token.content for token in _reference(family).get_added_tokens_decoder().values()]
    return self_test_strings(added)


def _chats(family: str) -> list[list[dict[str, str]]]:
    """Repeatable chats that share beginnings, as those of a conversation do: what is cached comes again."""
    chance = random.Random(family)
    strings = [text for text in _strings(family) if len(text) < 200]
    chats: list[list[dict[str, str]]] = []
    for _ in range(CHATS):
        messages = list(chance.choice(chats)) if chats and chance.random() < 0.6 else []
        for _ in range(chance.randint(1, 3)):
            words = " ".join(chance.choice(strings) for _ in range(chance.randint(0, 12)))
            messages.append({"role": chance.choice(["system", "user", "assistant"]), "content": words})
        chats.append(messages)
    return chats


@pytest.mark.parametrize("family", FAMILIES)
def test_fastokens_counts_each_family(family: str) -> None:
    assert _counter(family).fast


@pytest.mark.parametrize("family", FAMILIES)
def test_chats_have_the_ids_of_hugging_face_also_when_segments_come_again(family: str) -> None:
    for messages in _chats(family):
        ask = _ask(messages)
        count = _count(family, ask)
        expected = _reference(family).encode(_by_hand(family, messages), add_special_tokens=False).ids
        assert count.prompt_tokens == (len(expected),)
        assert isinstance(count.token_ids, bytes)
        assert list(array("I", count.token_ids)) == expected
        bound = BoundCounter().count(ask)
        assert bound.prompt_tokens[0] >= len(expected)
    fast = _counter(family)._vocabulary._fast
    assert fast is not None
    assert fast.segment_cache_stats()["hits"] > CHATS


@pytest.mark.parametrize("family", FAMILIES)
def test_no_text_has_fewer_tokens_than_its_length_tells(family: str) -> None:
    vocabulary = _counter(family)._vocabulary
    longest = max(_reference(family).get_vocab(), key=len)
    texts = [*_strings(family), longest * 50, " " * 10_000, "\n" * 5000, "각" * 500, "\u1100\u1161\u11a8" * 500]
    assert vocabulary.least("x" * 10_000) > 0
    for text in texts:
        assert vocabulary.least(text) <= vocabulary.length(text, special=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_that_cannot_fit_is_refused_before_it_is_tokenized(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = _counter(family)

    def tokenized(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("it was tokenized")

    monkeypatch.setattr(counter, "max_context", Tokens(8))
    monkeypatch.setattr(counter._vocabulary, "encoded", tokenized)
    monkeypatch.setattr(counter._vocabulary, "encoded_pieces", tokenized)
    with pytest.raises(BadRequestError, match=r"maximum context length is 8 tokens.*at least") as caught:
        counter.count(_ask([{"role": "user", "content": "a b " * 2000}]))
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(("family", "name"), [("llama3", "llama3"), ("gpt-oss", "o200k_base"), ("gemma3", "gemma3")])
def test_plain_text_has_the_ids_of_splintr(family: str, name: str) -> None:
    splintr = Splintr.from_pretrained(name)
    added = [token.content for token in _reference(family).get_added_tokens_decoder().values()]
    for text in _strings(family):
        if not any(token in text for token in added) and "  " not in text:
            ids = _counter(family)._vocabulary.encoded(text, special=False)[1]
            assert list(array("I", bytes(ids))) == splintr.encode_ordinary(text), text


def test_mistral_v3_has_the_ids_of_sentencepiece() -> None:
    model = files("mistral_common") / "data" / "mistral_instruct_tokenizer_240323.model.v3"
    reference = SentencePieceProcessor(model_proto=model.read_bytes())
    control = [token.content for token in _reference("mistral-v3").get_added_tokens_decoder().values()]
    compared = 0
    for text in _strings("mistral-v3"):
        # Control tokens are text to sentencepiece, an empty text has no blank before it, and its own sign is a blank.
        if text and not any(token in text for token in control) and "\x00" not in text and "▁" not in text:
            ids = _counter("mistral-v3")._vocabulary.encoded(text, special=False)[1]
            assert list(array("I", bytes(ids))) == reference.encode(text), repr(text)
            compared += 1
    assert compared > 200


def test_every_vocabulary_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def build(folder: Path) -> None:
        made.append(folder)

    builders: dict[str, Callable[[Path], Any]] = {"x": build}
    monkeypatch.setattr(vocabularies, "CACHE", tmp_path)
    monkeypatch.setattr(vocabularies, "BUILDERS", builders)
    assert vocabularies.vocabulary("x") == vocabularies.vocabulary("x")
    assert len(made) == 1
