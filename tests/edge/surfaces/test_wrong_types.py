"""Any value in any member of any API: the request is read, bounded and forwarded as granted, or refused by name."""

import asyncio
import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbudget.edge.openai.ask import Ask, Surface, parse_ask
from kvbudget.edge.openai.body import MAX_DEPTH
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.openai.forward import forwarded_body, slimmed
from kvbudget.edge.surfaces.members import MAX_SEQUENCES, MOST_MODEL_CHARS
from kvbudget.edge.tokens.bound import BoundCounter
from kvbudget.edge.tokens.count import Count
from kvbudget.edge.tokens.engine import EngineCounter
from kvbudget.edge.tokens.image_rules import FixedTokens
from kvbudget.edge.tokens.images import ImageCounter


def words(text: str) -> list[str]:
    return text.split()


HI = [{"role": "user", "content": "hi"}]
LAWFUL: dict[Surface, dict[str, Any]] = {
    Surface.CHAT: {"messages": HI, "max_tokens": 4},
    Surface.COMPLETIONS: {"prompt": "hi", "max_tokens": 4},
    Surface.RESPONSES: {"input": "hi", "max_output_tokens": 4},
    Surface.MESSAGES: {"messages": HI, "max_tokens": 4},
    Surface.TGI_GENERATE: {"inputs": "hi", "parameters": {"max_new_tokens": 4}},
    Surface.TGI_GENERATE_STREAM: {"inputs": "hi"},
    Surface.EMBEDDINGS: {"input": "hi"},
    Surface.POOLING: {"input": "hi"},
    Surface.CLASSIFY: {"input": "hi"},
    Surface.SCORE: {"text_1": "a", "text_2": ["b", "c"]},
    Surface.RERANK: {"query": "a", "documents": ["b", "c"]},
}
MEMBERS = sorted(
    words("""model messages max_tokens max_completion_tokens n stream stream_options stop tools tool_choice
    response_format logprobs top_logprobs seed best_of use_beam_search echo prompt_logprobs
    add_generation_prompt prompt input inputs continue_final_message chat_template chat_template_kwargs
    documents reasoning_effort truncate_prompt_tokens suffix kv_transfer_params vllm_xargs
    session_params background n_predict n_cmpl max_new_tokens mm_processor_kwargs system instructions
    max_output_tokens previous_response_id truncation reasoning text conversation thinking output_config
    parameters input_ids text_1 text_2 query queries items data encoding_format add_special_tokens
    prompt_embeds previous_input_messages top_n data_1""")
)
KINDS = words("""text image_url input_text input_image output_text image tool_use tool_result thinking
    redacted_thinking tool_reference refusal input_audio document function custom message function_call
    function_call_output reasoning user assistant system developer tool""")
IMAGES = ["data:image/gif;base64,R0lGODlhAAEAAQ==", "data:,x", "https://a/b.png", "data:image/png;base64,!!!!"]
scalars = (
    st.none()
    | st.booleans()
    | st.sampled_from([-1, 0, 1, 2, 3, 10**9, 2**31, 2**53, 2**63, 2**64, 10**30])
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "12", "auto", "none", "low", "{", '{"a": 1}', "\u00e9\u0301", "\x00\x7f", *KINDS, *IMAGES])
    | st.text(max_size=8)
)
names = st.sampled_from(
    sorted(
        words("""role content type text image_url url name arguments function tool_calls id tool_call_id parameters
    strict description source input tool_use_id refusal reasoning reasoning_content summary output
    call_id effort status namespace prompt_token_ids do_remote_decode kv_transfer_params max_new_tokens
    best_of truncate input_schema decoder_input_details encrypted_content defer_loading schema format
    detail tool_name""")
    )
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)
turns = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool", "system", "developer", "x"])},
        optional={
            "type": st.sampled_from(KINDS) | scalars,
            "content": st.lists(
                st.fixed_dictionaries(
                    {"type": st.sampled_from(KINDS)},
                    optional=dict.fromkeys(("text", "image_url", "source", "input", "content", "thinking"), values),
                ),
                max_size=3,
            )
            | values,
            "tool_calls": st.lists(st.fixed_dictionaries({"function": values, "id": scalars}), max_size=2) | values,
            "reasoning": scalars,
            "name": values,
        },
    ),
    max_size=3,
)
ids = st.lists(st.integers(-2, 2**70), max_size=4) | st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=3)
bodies = st.dictionaries(st.sampled_from(MEMBERS), values | turns | ids, max_size=3)
counters = [
    ImageCounter(EngineCounter(lambda path, body: _told()), FixedTokens(1000)),
    ImageCounter(EngineCounter(lambda path, body: _told()), None),
]


async def _told() -> tuple[int, bytes]:
    return 200, b'{"count": 5}'


def counted(ask: Ask, counter: Any) -> Count | None:
    async def all_of_it() -> Count:
        count = counter.count(ask)
        return count if isinstance(count, Count) else await count

    try:
        return asyncio.run(all_of_it())
    except BadRequestError as error:
        json.loads(error.body())
        return None


def read(surface: Surface, raw: bytes) -> Ask | BadRequestError:
    try:
        return parse_ask(surface, raw)
    except BadRequestError as error:
        return error


@pytest.mark.parametrize("surface", Surface)
@settings(max_examples=150, deadline=None)
@given(more=bodies, without=st.sampled_from(["", "messages", "prompt", "input", "max_tokens"]))
def test_it_is_read_as_it_will_be_charged_or_refused(surface: Surface, more: dict[str, Any], without: str) -> None:
    body = {"model": "m", **LAWFUL[surface], **more}
    body.pop(without, None)
    raw = json.dumps(body, ensure_ascii=False).replace("Infinity", "1e400").encode("utf-8", "surrogatepass")
    ask = read(surface, raw)
    if isinstance(ask, BadRequestError):
        assert 400 <= ask.status < 500
        assert json.loads(ask.body())["error"]["code"]
        return
    assert ask.model is None or len(ask.model) <= MOST_MODEL_CHARS
    assert 1 <= ask.sequences <= MAX_SEQUENCES
    assert ask.max_new_tokens is None or (type(ask.max_new_tokens) is int and ask.max_new_tokens > 0)
    orjson.dumps([ask.model, ask.stream, ask.sequences, ask.max_new_tokens])  # as the access log does
    for counter in (BoundCounter(), *counters):
        count = counted(ask, counter)
        assert count is None or (count.prompt_tokens and all(tokens >= 0 for tokens in count.prompt_tokens))
    sent = forwarded_body(ask, 3)
    assert forwarded_body(slimmed(ask), 3) == sent
    forwarded = json.loads(sent)
    if ask.max_new_field:
        holder, _, name = ask.max_new_field.rpartition(".")
        assert (forwarded[holder] if holder else forwarded)[name] == 3
        changed = {name, holder, "max_tokens", "max_completion_tokens", "max_new_tokens", "n_predict"}
    else:
        changed = set()
    kept = json.loads(raw)
    assert {k: v for k, v in forwarded.items() if k not in changed} == {
        k: v for k, v in kept.items() if k not in changed
    }


@pytest.mark.parametrize("surface", Surface)
@pytest.mark.parametrize("member", ["model", "messages", "tools", "metadata"])
def test_what_is_nested_without_end_is_refused(surface: Surface, member: str) -> None:
    deep = b"[" * (MAX_DEPTH + 50) + b"]" * (MAX_DEPTH + 50)
    raw = json.dumps({**LAWFUL[surface], member: 0}).encode().replace(b'"%b": 0' % member.encode(), b'"%b": %b' % (
        member.encode(), deep))  # fmt: skip
    with pytest.raises(BadRequestError) as refused:
        parse_ask(surface, raw)
    assert refused.value.code == "nested_too_deep"


@pytest.mark.parametrize("surface", [surface for surface in Surface if not surface.startswith("tgi")])
def test_a_model_of_a_megabyte_is_refused(surface: Surface) -> None:
    lawful = {**LAWFUL[surface], "model": "m" * MOST_MODEL_CHARS}
    assert parse_ask(surface, json.dumps(lawful).encode()).model == lawful["model"]
    with pytest.raises(BadRequestError, match="at most 512 characters") as refused:
        parse_ask(surface, json.dumps({**lawful, "model": "m" * 1_000_000}).encode())
    assert (refused.value.param, len(refused.value.message) < 200) == ("model", True)
