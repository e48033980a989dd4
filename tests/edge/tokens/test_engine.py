import asyncio
import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest

from deep_json import deep_json
from kvbudget.edge.openai.ask import Ask, Surface, parse_ask
from kvbudget.edge.openai.body import LARGE_BODY_BYTES
from kvbudget.edge.openai.errors import BadRequestError, ModelNotFoundError
from kvbudget.edge.tokens.count import Count, CountFailedError
from kvbudget.edge.tokens.engine import PARALLEL_CALLS, STRUCTURE_BYTES, EngineCounter


class Tokenize:
    """A fake engine: counts words, remembers what it was asked and how much at once."""

    def __init__(self, status: int = 200, answer: bytes | None = None) -> None:
        self.status = status
        self.answer = answer
        self.asked: list[dict[str, Any]] = []
        self.running = 0
        self.most_running = 0

    async def __call__(self, path: str, body: bytes) -> tuple[int, bytes]:
        assert path == "/tokenize"
        question = json.loads(body)
        self.asked.append(question)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        count = len(str(question.get("prompt", "")).split())
        return self.status, self.answer if self.answer is not None else json.dumps({"count": count}).encode()


def _count(engine: Any, ask: Ask) -> Count:
    async def run() -> Count:
        pending = EngineCounter(engine).count(ask)
        assert inspect.isawaitable(pending)
        return await pending

    return asyncio.run(run())


def test_a_model_that_the_engine_does_not_serve_is_404_and_no_failed_count(chat: Callable[..., Ask]) -> None:
    told = b'{"error": {"message": "The model `nope` does not exist.", "param": "model", "code": 404}}'
    with pytest.raises(ModelNotFoundError, match="nope") as caught:
        _count(Tokenize(404, told), chat([{"role": "user", "content": "x"}], model="nope"))
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
    with pytest.raises(CountFailedError):
        _count(Tokenize(404, b'{"detail": "Not Found"}'), chat([{"role": "user", "content": "x"}], model="m"))


def test_a_chat_is_asked_for_with_all_that_changes_its_count(chat: Callable[..., Ask]) -> None:
    engine = Tokenize(answer=b'{"count": 42, "max_model_len": 1024, "tokens": []}')
    tool = {"type": "function", "function": {"name": "f"}}
    ask = chat(
        [{"role": "assistant", "content": "so"}],
        model="m",
        tools=[tool],
        chat_template_kwargs={"enable_thinking": False},
        continue_final_message=True,
        add_generation_prompt=False,
        reasoning_effort="low",
    )
    assert _count(engine, ask) == Count((42,), True)  # type: ignore[arg-type]
    assert engine.asked == [
        {
            "model": "m",
            "messages": [{"role": "assistant", "content": "so"}],
            "add_generation_prompt": False,
            "continue_final_message": True,
            "add_special_tokens": False,
            "tools": [tool],
            "chat_template_kwargs": {"enable_thinking": False, "reasoning_effort": "low"},
        }
    ]


@pytest.mark.parametrize(
    ("message", "asked"),
    [
        ({"reasoning_content": "hm"}, {"reasoning": "hm"}),
        ({"reasoning_content": "hm", "reasoning": "so"}, {"reasoning": "so"}),
        ({"reasoning_content": None}, {}),
        ({"reasoning": "so"}, {"reasoning": "so"}),
    ],
)
def test_thoughts_are_asked_for_under_the_name_that_tokenize_reads(
    chat: Callable[..., Ask], message: dict[str, Any], asked: dict[str, Any]
) -> None:
    engine = Tokenize(answer=b'{"count": 3}')
    _count(engine, chat([{"role": "assistant", "content": "a", **message}]))
    assert engine.asked[0]["messages"] == [{"role": "assistant", "content": "a", **asked}]


def test_chats_that_tokenize_renders_otherwise_are_rendered_by_the_engine(chat: Callable[..., Ask]) -> None:
    asked: list[tuple[str, bytes]] = []

    async def render(path: str, body: bytes) -> tuple[int, bytes]:
        asked.append((path, body))
        return 200, b'{"token_ids": [7, 8, 9], "sampling_params": {}}'

    ask = chat("hi", model="m")

    async def run() -> Count:
        pending = EngineCounter(render, render=True).count(ask)
        assert inspect.isawaitable(pending)
        return await pending

    assert asyncio.run(run()) == Count((3,), True, [7, 8, 9])  # type: ignore[arg-type]
    assert asked == [("/v1/chat/completions/render", ask.raw)]


def test_an_engine_without_rendering_cannot_count(chat: Callable[..., Ask]) -> None:
    async def disabled(path: str, body: bytes) -> tuple[int, bytes]:
        return 403, b'{"error": {"message": "Scale-out endpoints are disabled."}}'

    async def run() -> None:
        pending = EngineCounter(disabled, render=True).count(chat("hi"))
        assert inspect.isawaitable(pending)
        await pending

    with pytest.raises(CountFailedError, match="render answered 403"):
        asyncio.run(run())


def test_prompts_are_asked_for_one_each_in_order_and_bounded_in_number(completions: Callable[..., Ask]) -> None:
    engine = Tokenize()
    texts = [" ".join(["w"] * n) for n in range(1, 41)]
    assert _count(engine, completions(texts)).prompt_tokens == tuple(range(1, 41))
    assert engine.asked[0] == {"prompt": "w", "add_special_tokens": True}
    assert 1 < engine.most_running <= PARALLEL_CALLS


# A system message between others: where it is rendered depends on the template.
OPAQUE = b'{"messages":[{"role":"user","content":"a"},{"role":"system","content":"b"}],"max_tokens":1}'


@pytest.mark.parametrize("path", [Surface.TGI_GENERATE, Surface.TGI_GENERATE_STREAM])
def test_a_tgi_prompt_is_counted_by_either_engine(path: Surface) -> None:
    ask = parse_ask(path, b'{"inputs":"a b"}')
    listed = json.dumps([{"id": 7, "text": "a", "start": 0, "stop": 1}, {"id": 9, "text": " b", "start": 1, "stop": 3}])
    tgi = Tokenize(answer=listed.encode())
    assert _count(tgi, ask) == Count((2,), True, [7, 9])  # type: ignore[arg-type]
    assert tgi.asked == [{"prompt": "a b", "add_special_tokens": True, "inputs": "a b"}]
    assert _count(Tokenize(), ask).prompt_tokens == (2,)
    assert _count(Tokenize(answer=b"[5, null]"), ask) == Count((2,), True)  # type: ignore[arg-type]
    with pytest.raises(CountFailedError):
        _count(Tokenize(answer=b"[5,"), ask)


def test_token_ids_and_opaque_surfaces_need_no_call(completions: Callable[..., Ask]) -> None:
    engine = Tokenize()
    assert EngineCounter(engine).count(completions([1, 2, 3])) == Count((3,), True)  # type: ignore[arg-type]
    bound = EngineCounter(engine).count(parse_ask(Surface.MESSAGES, OPAQUE))
    assert isinstance(bound, Count)
    assert not bound.exact
    assert engine.asked == []


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b'{"error":{"message":"too long","code":400}}', "too long"),
        (b'{"message":"too long"}', "too long"),
        (b'{"error":"too long"}', "too long"),
        (b"[]", "status 400"),
        (b"\xff", "status 400"),
    ],
)
def test_a_prompt_that_the_engine_blames_is_a_bad_request_in_its_words(
    completions: Callable[..., Ask], answer: bytes, message: str
) -> None:
    with pytest.raises(BadRequestError, match=message):
        _count(Tokenize(400, answer), completions("a"))


@pytest.mark.parametrize(
    ("status", "answer"),
    [(404, b"{}"), (401, b"{}"), (429, b"{}"), (500, b"{}"), (200, b"{}"), (200, b"no"), (200, b'{"count":-1}'),
     (200, b'{"count":true}'), (200, b'{"count":"5"}')],
)  # fmt: skip
def test_any_other_answer_is_the_counters_failure(completions: Callable[..., Ask], status: int, answer: bytes) -> None:
    with pytest.raises(CountFailedError):
        _count(Tokenize(status, answer), completions("a"))


@pytest.mark.parametrize("error", [ConnectionRefusedError("no"), TimeoutError("late"), OSError("gone")])
def test_an_engine_that_cannot_be_reached_is_the_counters_failure(
    completions: Callable[..., Ask], error: Exception
) -> None:
    async def unreachable(path: str, body: bytes) -> tuple[int, bytes]:
        raise error

    with pytest.raises(CountFailedError, match="cannot be reached"):
        _count(unreachable, completions(["a", "b"]))


def test_the_first_failure_ends_the_other_calls(completions: Callable[..., Ask]) -> None:
    ended: list[str] = []

    async def engine(path: str, body: bytes) -> tuple[int, bytes]:
        if json.loads(body)["prompt"] == "bad":
            return 500, b""
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")
        return 200, b'{"count": 1}'

    async def run() -> None:
        pending = EngineCounter(engine).count(completions(["a", "b", "bad"]))
        assert inspect.isawaitable(pending)
        with pytest.raises(CountFailedError):
            await pending
        for _ in range(3):  # turns of the loop in which the cancelled calls end; the loop's own end comes later
            await asyncio.sleep(0)
        assert len(ended) == 2

    asyncio.run(run())


def test_an_integer_that_cannot_be_passed_on_is_the_requests_fault(chat: Callable[..., Ask]) -> None:
    with pytest.raises(BadRequestError, match="cannot be passed on"):
        _count(Tokenize(), chat("a", chat_template_kwargs={"x": 2**70}))


@pytest.mark.parametrize("members", [STRUCTURE_BYTES, LARGE_BODY_BYTES])
def test_an_absurd_structure_is_refused_before_the_engine_is_asked(chat: Callable[..., Ask], members: int) -> None:
    asked: list[str] = []

    async def post(path: str, body: bytes) -> tuple[int, bytes]:
        asked.append(path)
        return 200, b'{"count":1}'

    ask = chat("a", tools=[{"function": {"name": "f", "parameters": deep_json(members)}}])

    async def count() -> None:
        counting = EngineCounter(post).count(ask)
        assert not isinstance(counting, Count)
        await counting

    with pytest.raises(BadRequestError) as caught:
        asyncio.run(count())
    assert (caught.value.code, asked) == ("prompt_too_large", [])


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (b'{"count": 3, "tokens": [7, 8, 9]}', [7, 8, 9]),
        (b'{"count": 2, "tokens": [7, 8, 9]}', None),
        (b'{"count": 2, "tokens": [7, "8"]}', None),
        (b'{"count": 2, "tokens": [7, true]}', None),
        (b'{"count": 2}', None),
    ],
)
def test_ids_that_the_engine_tells_come_with_the_count_of_one_prompt(
    completions: Callable[..., Ask], answer: bytes, wanted: list[int] | None
) -> None:
    assert _count(Tokenize(answer=answer), completions("a b c")).token_ids == wanted
    assert _count(Tokenize(answer=answer), completions(["a", "b"])).token_ids is None
