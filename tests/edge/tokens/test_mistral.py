import asyncio
import inspect
import json
import shutil
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from mistral_common.protocol.instruct.messages import AssistantMessage, SystemMessage, UserMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

from kvbudget.edge.openai.ask import Ask, OpaquePrompt, Surface, parse_ask
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.tokens.bound import BoundCounter
from kvbudget.edge.tokens.count import Count
from kvbudget.edge.tokens.mistral import MistralCounter
from kvbudget.errors import BadConfigError

MODELS = {"tekken.json": "tekken_240911.json", "tokenizer.model.v3": "mistral_instruct_tokenizer_240323.model.v3"}


def _file(name: str) -> Path:
    return Path(str(files("mistral_common") / "data" / MODELS[name]))


@pytest.fixture(scope="module", params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def reference(name: str) -> Any:
    return MistralTokenizer.from_file(str(_file(name)))


@pytest.fixture(scope="module")
def counter(name: str, tmp_path_factory: pytest.TempPathFactory) -> MistralCounter:
    folder = tmp_path_factory.mktemp("mistral")
    shutil.copy(_file(name), folder / name)
    return MistralCounter.load(folder, deadline_s=60)


def _ask(surface: Surface, **body: Any) -> Ask:
    return parse_ask(surface, json.dumps(body).encode())


def _count(counter: MistralCounter, ask: Ask) -> Count:
    async def run() -> Count:
        count = counter.count(ask)
        return await count if inspect.isawaitable(count) else count

    return asyncio.run(run())


def test_a_chat_has_the_ids_of_mistral_common(counter: MistralCounter, reference: Any) -> None:
    texts = ["Be brief. [INST] </s>", "naïve 你好 [/INST]", "so " * 2000, "and then?"]
    roles = [SystemMessage, UserMessage, AssistantMessage, UserMessage]
    request: Any = ChatCompletionRequest(messages=[role(content=text) for role, text in zip(roles, texts, strict=True)])
    messages = [
        {"role": role, "content": text}
        for role, text in zip(["system", "user", "assistant", "user"], texts, strict=True)
    ]
    count = _count(counter, _ask(Surface.CHAT, messages=messages))
    assert count.exact
    assert count.token_ids == reference.encode_chat_completion(request).tokens
    assert count.prompt_tokens == (len(count.token_ids or ()),)


def test_tools_take_tokens(counter: MistralCounter) -> None:
    messages = [{"role": "user", "content": "hi"}]
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
    plain = _count(counter, _ask(Surface.CHAT, messages=messages)).prompt_tokens[0]
    assert _count(counter, _ask(Surface.CHAT, messages=messages, tools=[tool])).prompt_tokens[0] > plain + 10


def test_completions_begin_with_the_first_token_unless_told_otherwise(counter: MistralCounter, reference: Any) -> None:
    encode = reference.instruct_tokenizer.tokenizer.encode
    count = _count(counter, _ask(Surface.COMPLETIONS, prompt="a <s> b"))
    assert count.token_ids == encode("a <s> b", bos=True, eos=False)
    plain = _count(counter, _ask(Surface.COMPLETIONS, prompt=["a", "b c"], add_special_tokens=False))
    assert plain.prompt_tokens == (len(encode("a", bos=False, eos=False)), len(encode("b c", bos=False, eos=False)))


def test_what_the_library_rejects_is_the_requests_fault(counter: MistralCounter) -> None:
    ask = _ask(Surface.CHAT, messages=[{"role": "tool", "content": "x"}])
    with pytest.raises(BadRequestError, match="mistral-common rejects") as caught:
        counter.count(ask)
    assert caught.value.code == "chat_template_error"


def test_too_long_a_word_is_refused_before_it_is_tokenized(counter: MistralCounter) -> None:
    with pytest.raises(BadRequestError) as caught:
        _count(counter, _ask(Surface.COMPLETIONS, prompt="a" * 100_000))
    assert caught.value.code == "unbroken_run_too_long"


def test_a_count_over_its_deadline_becomes_the_bound(name: str, tmp_path: Path) -> None:
    shutil.copy(_file(name), tmp_path / name)
    late = MistralCounter.load(tmp_path, deadline_s=0.0)
    ask = _ask(Surface.COMPLETIONS, prompt="words " * 10_000)
    assert _count(late, ask) == BoundCounter().count(ask)
    late.close()


def test_what_is_no_chat_gets_the_bound(counter: MistralCounter) -> None:
    turns = [{"role": "user", "content": "hi"}, {"role": "system", "content": "be brief"}]
    ask = _ask(Surface.MESSAGES, messages=turns, max_tokens=5)
    assert isinstance(ask.prompt, OpaquePrompt)
    assert not _count(counter, ask).exact


def test_a_folder_without_such_a_tokenizer_and_a_missing_library_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadConfigError, match="neither"):
        MistralCounter.load(tmp_path)
    (tmp_path / "tekken.json").write_text("{}")
    with pytest.raises(BadConfigError, match="cannot be read"):
        MistralCounter.load(tmp_path)
    monkeypatch.setitem(sys.modules, "mistral_common.tokens.tokenizers.mistral", None)
    with pytest.raises(BadConfigError, match="not installed") as caught:
        MistralCounter.load(tmp_path)
    assert "mistral-common[sentencepiece]>=1.8" in str(caught.value.fix)
