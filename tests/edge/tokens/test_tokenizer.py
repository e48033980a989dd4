import asyncio
import inspect
import json
import shutil
from array import array
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from deep_json import deep_json
from kvbudget.edge.openai.ask import Ask, Surface, parse_ask
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.tokens.bound import BoundCounter
from kvbudget.edge.tokens.count import Count
from kvbudget.edge.tokens.template import ChatTemplate
from kvbudget.edge.tokens.tokenizer import TokenizerCounter
from kvbudget.edge.tokens.vocabulary import Vocabulary
from kvbudget.errors import BadConfigError

AskOf = Callable[..., Ask]
TEXTS = st.text(max_size=40) | st.sampled_from(
    ["<|im_end|>", "a<s>b", "<|im_start|>user", "e\u0301", "你好", "\n\n ", "12345"]
)


def test_an_absurd_structure_is_refused_before_a_template_may_indent_it(counter: TokenizerCounter, chat: AskOf) -> None:
    tool = {"function": {"name": "f", "parameters": deep_json(100_000)}}

    async def later() -> None:
        counting = counter.count(chat("a", tools=[tool]))
        assert inspect.isawaitable(counting)
        await counting

    with pytest.raises(BadRequestError) as caught:
        asyncio.run(later())
    assert caught.value.code == "prompt_too_large"


def _now(counter: Any, ask: Ask) -> Count:
    count = counter.count(ask)
    assert isinstance(count, Count)
    return count


def _ids(reference: Tokenizer, text: str, *, special: bool = False) -> int:
    return len(reference.encode(text, add_special_tokens=special).ids)


def test_fastokens_counts_after_the_self_test(counter: TokenizerCounter) -> None:
    assert counter.fast
    assert any("agrees" in note for note in counter.notes)


def test_a_chat_counts_as_rendered_by_hand(counter: TokenizerCounter, reference: Tokenizer, chat: AskOf) -> None:
    ask = chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello <|im_end|> 你好"}])
    text = (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHello <|im_end|> 你好<|im_end|>\n<|im_start|>assistant\n"
    )
    count = _now(counter, ask)
    assert (count.prompt_tokens, count.exact) == ((_ids(reference, text),), True)


def test_tools_are_counted_as_the_engine_dumps_them(
    counter: TokenizerCounter, reference: Tokenizer, chat: AskOf
) -> None:
    tool = {"function": {"parameters": {"type": "object"}, "name": "f", "junk": 1}, "type": "function"}
    dumped = '{"type": "function", "function": {"name": "f", "description": null, "parameters": {"type": "object"}}}'
    text = f"<|im_start|>system\n# Tools\n{dumped}\n<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert _now(counter, chat("hi", tools=[tool])).prompt_tokens == (_ids(reference, text),)


def test_tool_calls_reach_the_template_as_objects(counter: TokenizerCounter, reference: Tokenizer, chat: AskOf) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    ask = chat([{"role": "assistant", "content": None, "tool_calls": [call]}], add_generation_prompt=False)
    text = '<|im_start|>assistant\n<tool_call>f {"a": 1}</tool_call><|im_end|>\n'
    assert _now(counter, ask).prompt_tokens == (_ids(reference, text),)


@pytest.mark.parametrize("final", ["The answer is", "The answer is ", "  x"])
def test_a_final_message_to_continue_is_left_open(
    counter: TokenizerCounter, reference: Tokenizer, chat: AskOf, final: str
) -> None:
    ask = chat(
        [{"role": "user", "content": "q"}, {"role": "assistant", "content": final}],
        continue_final_message=True,
        add_generation_prompt=False,
    )
    text = f"<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n{final}"
    assert _now(counter, ask).prompt_tokens == (_ids(reference, text),)


def test_template_arguments_of_the_request_win_over_the_servers(
    folder: Path, reference: Tokenizer, chat: AskOf
) -> None:
    server = TokenizerCounter.load(folder, default_template_kwargs={"enable_thinking": False})
    head = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert _now(server, chat("hi")).prompt_tokens == (_ids(reference, head + "<think></think>\n"),)
    ask = chat("hi", chat_template_kwargs={"enable_thinking": True})
    assert _now(server, ask).prompt_tokens == (_ids(reference, head),)


def test_completions_get_the_special_tokens_and_chats_do_not(
    counter: TokenizerCounter, reference: Tokenizer, chat: AskOf, completions: AskOf
) -> None:
    assert _now(counter, completions("hello")).prompt_tokens == (_ids(reference, "hello", special=True),)
    plain = _now(counter, completions("hello", add_special_tokens=False)).prompt_tokens
    assert plain == (_ids(reference, "hello"),)
    with_special = _now(counter, chat("hi", add_special_tokens=True)).prompt_tokens[0]
    assert with_special == _now(counter, chat("hi")).prompt_tokens[0] + 1


def test_a_list_of_prompts_is_counted_one_by_one(
    counter: TokenizerCounter, reference: Tokenizer, completions: AskOf
) -> None:
    texts = ["a", "the pool", ""]
    expected = tuple(_ids(reference, text, special=True) for text in texts)
    assert _now(counter, completions(texts)).prompt_tokens == expected


def test_token_ids_need_no_tokenizer(counter: TokenizerCounter, completions: AskOf) -> None:
    assert _now(counter, completions([[1, 2], [3]])) == Count((2, 1), True)  # type: ignore[arg-type]


def test_a_prompt_without_tokens_is_refused(counter: TokenizerCounter, completions: AskOf) -> None:
    with pytest.raises(BadRequestError, match="no tokens"):
        counter.count(completions(["", "a"], add_special_tokens=False))


def test_truncation_caps_the_count(counter: TokenizerCounter, completions: AskOf) -> None:
    assert _now(counter, completions("the pool is what", truncate_prompt_tokens=2)).prompt_tokens == (2,)


def test_what_cannot_be_rendered_gets_the_bound(counter: TokenizerCounter) -> None:
    messages = b'[{"role":"user","content":"a"},{"role":"system","content":"b"}]'
    ask = parse_ask(Surface.MESSAGES, b'{"max_tokens":1,"messages":%b}' % messages)
    assert _now(counter, ask) == BoundCounter().count(ask)
    assert not _now(counter, ask).exact


@given(st.lists(TEXTS, min_size=1, max_size=4))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_chat_counts_as_hugging_face_counts_it_and_stays_under_the_bound(
    counter: TokenizerCounter, reference: Tokenizer, chat: AskOf, texts: list[str]
) -> None:
    ask = chat([{"role": "user", "content": text} for text in texts])
    text = "".join(f"<|im_start|>user\n{text}<|im_end|>\n" for text in texts) + "<|im_start|>assistant\n"
    count = _now(counter, ask).prompt_tokens
    assert count == (_ids(reference, text),)
    assert count <= BoundCounter().count(ask).prompt_tokens


def test_a_large_request_is_counted_in_a_thread_with_the_same_result(
    counter: TokenizerCounter, reference: Tokenizer, chat: AskOf
) -> None:
    ask = chat("The pool is what the engine has. " * 1000)

    async def run() -> Count:
        pending = counter.count(ask)
        assert inspect.isawaitable(pending)
        return await pending

    text = f"<|im_start|>user\n{ask.body['messages'][0]['content']}<|im_end|>\n<|im_start|>assistant\n"  # type: ignore[index]
    count = asyncio.run(run())
    assert (count.prompt_tokens, count.exact) == ((_ids(reference, text),), True)


def test_a_refusal_in_a_thread_reaches_the_caller(folder: Path, chat: AskOf) -> None:
    strict = TokenizerCounter.load(folder, chat_template="{{ raise_exception('no such role') }}")

    async def run() -> None:
        pending = strict.count(chat("words " * 10_000))
        assert inspect.isawaitable(pending)
        with pytest.raises(BadRequestError, match="no such role"):
            await pending

    asyncio.run(run())
    strict.close()


def test_a_count_over_its_deadline_becomes_the_bound(folder: Path, chat: AskOf) -> None:
    late = TokenizerCounter.load(folder, deadline_s=0.0)
    ask = chat("words " * 10_000)

    async def run() -> Count:
        pending = late.count(ask)
        assert inspect.isawaitable(pending)
        return await pending

    count = asyncio.run(run())
    assert count == BoundCounter().count(ask)
    assert not count.exact
    late.close()


def test_too_much_text_is_refused_before_it_is_tokenized(folder: Path, chat: AskOf, completions: AskOf) -> None:
    small = TokenizerCounter(Vocabulary.load(folder, {}), {}, max_text_bytes=100, max_run_chars=10)
    with pytest.raises(BadRequestError) as caught:
        small.count(completions("ab " * 40))
    assert caught.value.code == "prompt_too_large"
    with pytest.raises(BadRequestError) as caught:
        small.count(completions("a" * 11))
    assert caught.value.code == "unbroken_run_too_long"
    with pytest.raises(BadRequestError) as caught:
        small.count(chat("a" * 11))
    assert caught.value.code == "unbroken_run_too_long"


def test_a_model_without_template_refuses_chats_and_says_so(folder: Path, chat: AskOf) -> None:
    bare = TokenizerCounter(Vocabulary.load(folder, {}), {})
    assert any("no chat template" in note for note in bare.notes)
    with pytest.raises(BadRequestError, match="no chat template"):
        bare.count(chat("hi"))


def test_the_template_of_the_folder_is_found_where_transformers_finds_it(
    folder: Path, tmp_path: Path, chat: AskOf, reference: Tokenizer
) -> None:
    shutil.copy(folder / "tokenizer.json", tmp_path)
    named = [{"name": "default", "template": "d{{ bos_token }}"}, {"name": "tool_use", "template": "tools"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named, "bos_token": "<s>"}))
    counter = TokenizerCounter.load(tmp_path)
    assert _now(counter, chat("hi")).prompt_tokens == (_ids(reference, "d<s>"),)
    assert _now(counter, chat("hi", tools=[{"function": {"name": "f"}}])).prompt_tokens == (_ids(reference, "tools"),)
    (tmp_path / "chat_template.jinja").write_text("from a file")
    assert _now(TokenizerCounter.load(tmp_path), chat("hi")).prompt_tokens == (_ids(reference, "from a file"),)
    given = TokenizerCounter.load(tmp_path, chat_template="given")
    assert _now(given, chat("hi")).prompt_tokens == (_ids(reference, "given"),)
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "older file"}))
    assert _now(TokenizerCounter.load(tmp_path), chat("hi")).prompt_tokens == (_ids(reference, "older file"),)


def test_the_date_comes_from_the_clock_that_was_passed_in(folder: Path, chat: AskOf, reference: Tokenizer) -> None:
    counter = TokenizerCounter.load(
        folder, now=lambda: datetime(2024, 7, 26, tzinfo=UTC), chat_template="{{ strftime_now('%d %b %Y') }}"
    )
    assert _now(counter, chat("hi")).prompt_tokens == (_ids(reference, "26 Jul 2024"),)


@pytest.mark.parametrize(
    ("file", "text"),
    [("tokenizer_config.json", "{"), ("tokenizer_config.json", "[]"), ("tokenizer_config.json", '{"chat_template": 5}'),
     ("tokenizer_config.json", '{"chat_template": "{% for %}"}'), ("tokenizer.json", "{}")],
)  # fmt: skip
def test_a_damaged_folder_is_refused_with_its_reason(folder: Path, tmp_path: Path, file: str, text: str) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(BadConfigError):
        TokenizerCounter.load(tmp_path)


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfigError, match=r"tokenizer\.json"):
        TokenizerCounter.load(tmp_path)


def test_without_fastokens_less_is_counted_inline(folder: Path, chat: AskOf) -> None:
    full = Vocabulary.load(folder, {})
    slow = TokenizerCounter(Vocabulary(full._reference, None, ()), {"default": ChatTemplate("x", {}, datetime.now)})
    assert isinstance(slow.count(chat("hi")), Count)
    pending = slow.count(chat("hi " * 1000))
    assert inspect.iscoroutine(pending)
    pending.close()


@pytest.mark.parametrize("fast", [True, False])
def test_the_ids_of_one_prompt_come_with_its_count(
    counter: TokenizerCounter, reference: Tokenizer, completions: AskOf, fast: bool
) -> None:
    kept, counter._vocabulary._fast = counter._vocabulary._fast, counter._vocabulary._fast if fast else None
    try:
        count = _now(counter, completions("the pool has blocks"))
        ids = count.token_ids
        assert ids is not None
        wanted = reference.encode("the pool has blocks", add_special_tokens=True).ids
        assert (list(array("I", ids)) if isinstance(ids, bytes) else ids) == wanted
        assert isinstance(ids, bytes) is fast
        assert _now(counter, completions(["the pool", "has"])).token_ids is None
    finally:
        counter._vocabulary._fast = kept
