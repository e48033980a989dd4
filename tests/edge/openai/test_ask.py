import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvbudget.edge.openai.ask import SURFACES, Ask, Surface, parse_ask
from kvbudget.edge.openai.errors import ERROR_TYPES, BadRequestError

AskOf = Callable[..., Ask]
Minimal = dict[Surface, dict[str, Any]]

FIELDS = [
    "messages", "prompt", "input", "inputs", "model", "stream", "n", "best_of", "use_beam_search", "max_tokens",
    "max_completion_tokens", "max_output_tokens", "parameters", "tools", "documents", "chat_template_kwargs", "echo",
    "logprobs", "prompt_logprobs", "truncate_prompt_tokens", "add_generation_prompt", "continue_final_message",
    "add_special_tokens", "kv_transfer_params", "reasoning_effort", "system", "instructions", "suffix",
    "previous_response_id", "chat_template", "prompt_embeds", "text",
]  # fmt: skip
WORDS = [
    "role", "content", "type", "text", "user", "assistant", "tool_calls", "function", "name", "arguments", "image_url",
    "max_new_tokens", "best_of", "output", "tool_result",
]  # fmt: skip
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(WORDS)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.sampled_from(list(Surface)), st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=5), st.booleans())
@settings(max_examples=600, deadline=None)
def test_only_an_ask_or_a_bad_request_comes_out_of_any_json(
    minimal: Minimal, surface: Surface, members: dict[str, Any], on_top: bool
) -> None:
    body = {**minimal[surface], **members} if on_top else members
    _accepted_or_refused(surface, json.dumps(body).encode())


PARTS = st.fixed_dictionaries({"type": VALUES}, optional={"text": VALUES, "content": VALUES, "output": VALUES})
CALLS = st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({}, optional={"name": VALUES, "arguments": VALUES}) | VALUES}
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "tool"]) | VALUES},
        optional={"content": VALUES | st.lists(PARTS, max_size=2), "tool_calls": VALUES | st.lists(CALLS, max_size=2)},
    ),
    max_size=3,
)
TOOLS = st.lists(st.fixed_dictionaries({"type": VALUES}, optional={"function": VALUES}), max_size=2)


@given(st.sampled_from(list(Surface)), MESSAGES, TOOLS | VALUES)
@settings(max_examples=400, deadline=None)
def test_only_an_ask_or_a_bad_request_comes_out_of_nearly_right_messages(
    surface: Surface, messages: list[Any], tools: object
) -> None:
    body = {"messages": messages, "input": messages, "prompt": messages, "inputs": messages, "tools": tools}
    _accepted_or_refused(surface, json.dumps(body).encode())


@given(st.sampled_from(list(Surface)), st.binary(max_size=60))
@example(Surface.CHAT, b"")
@example(Surface.CHAT, b"\xff\xfe")
@example(Surface.CHAT, b"[" * 100_000)
@example(Surface.CHAT, b'{"messages":NaN}')
@example(Surface.CHAT, b'{"n":' + b"9" * 5000 + b"}")
@example(Surface.CHAT, b'{"model":"\\ud800"}')
@settings(max_examples=200, deadline=None)
def test_only_an_ask_or_a_bad_request_comes_out_of_any_bytes(surface: Surface, raw: bytes) -> None:
    _accepted_or_refused(surface, raw)


def _accepted_or_refused(surface: Surface, raw: bytes) -> None:
    outcome: Ask | BadRequestError
    try:
        outcome = parse_ask(surface, raw)
    except BadRequestError as error:
        outcome = error
    if isinstance(outcome, BadRequestError):
        assert outcome.code in ERROR_TYPES
        assert json.loads(outcome.body())["error"]["message"]
        assert len(outcome.message) < 600
    else:
        assert outcome.raw is raw
        assert 1 <= outcome.sequences <= 1024
        assert outcome.max_new_tokens is None or outcome.max_new_tokens >= 1


def test_every_path_of_the_table_has_a_surface() -> None:
    assert set(SURFACES.values()) == set(Surface)


def test_a_plain_chat_is_read_whole(ask_of: AskOf) -> None:
    ask = ask_of(model="m", stream=True, n=3, max_tokens=7)
    assert (ask.model, ask.stream, ask.sequences, ask.max_new_tokens, ask.max_new_field) == (
        "m",
        True,
        3,
        7,
        "max_tokens",
    )


def test_max_completion_tokens_wins_over_max_tokens(ask_of: AskOf) -> None:
    ask = ask_of(max_tokens=100, max_completion_tokens=5)
    assert (ask.max_new_tokens, ask.max_new_field) == (5, "max_completion_tokens")


def test_a_chat_without_max_tokens_leaves_it_open(ask_of: AskOf) -> None:
    assert ask_of().max_new_tokens is None
    assert ask_of(max_tokens=None).max_new_tokens is None


def test_completions_without_max_tokens_ask_for_the_sixteen_of_the_api(ask_of: AskOf) -> None:
    assert ask_of(Surface.COMPLETIONS).max_new_tokens == 16


def test_best_of_and_beam_width_are_sequences(ask_of: AskOf) -> None:
    assert ask_of(Surface.COMPLETIONS, n=2, best_of=5).sequences == 5
    assert ask_of(use_beam_search=True, n=4).sequences == 4
    assert ask_of(Surface.TGI_GENERATE, parameters={"best_of": 3}).sequences == 3


@pytest.mark.parametrize("value", [-1, 0, 1.0, "5", True, 2**60, [], {}])
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_max_tokens_that_is_no_positive_integer_is_refused(ask_of: AskOf, field: str, value: object) -> None:
    with pytest.raises(BadRequestError) as caught:
        ask_of(**{field: value})
    assert caught.value.param == field


@pytest.mark.parametrize("value", [0, -1, 1025, 1.0, True, "1"])
@pytest.mark.parametrize("field", ["n", "best_of"])
def test_an_absurd_number_of_sequences_is_refused(ask_of: AskOf, field: str, value: object) -> None:
    with pytest.raises(BadRequestError, match=field):
        ask_of(**{field: value})


@pytest.mark.parametrize(
    ("surface", "members"),
    [
        (Surface.CHAT, {"prompt_logprobs": 0}),
        (Surface.CHAT, {"echo": True}),
        (Surface.COMPLETIONS, {"echo": True, "logprobs": 0}),
        (Surface.COMPLETIONS, {"prompt_logprobs": 20}),
        (Surface.TGI_GENERATE, {"parameters": {"decoder_input_details": True}}),
    ],
)
def test_logprobs_of_the_prompt_are_noticed_under_every_name(
    ask_of: AskOf, surface: Surface, members: dict[str, Any]
) -> None:
    assert ask_of(surface, **members).prompt_logprobs
    assert not ask_of(surface).prompt_logprobs


@pytest.mark.parametrize("surface", [Surface.CHAT, Surface.COMPLETIONS])
def test_logprobs_of_the_whole_vocabulary_are_refused(ask_of: AskOf, surface: Surface) -> None:
    with pytest.raises(BadRequestError) as caught:
        ask_of(surface, prompt_logprobs=-1)
    assert caught.value.code == "prompt_logprobs_refused"


@pytest.mark.parametrize("surface", [Surface.RESPONSES, Surface.MESSAGES, Surface.TGI_GENERATE])
def test_logprobs_of_the_prompt_are_refused_where_the_api_has_none(ask_of: AskOf, surface: Surface) -> None:
    with pytest.raises(BadRequestError) as caught:
        ask_of(surface, prompt_logprobs=1)
    assert caught.value.code == "prompt_logprobs_refused"


def test_echo_alone_is_accepted_for_completions_and_may_generate_nothing(ask_of: AskOf) -> None:
    assert ask_of(Surface.COMPLETIONS, echo=True, max_tokens=0).max_new_tokens == 1
    assert ask_of(Surface.COMPLETIONS, logprobs=2).max_new_tokens == 16


def test_token_ids_hidden_in_transfer_parameters_are_refused(ask_of: AskOf) -> None:
    with pytest.raises(BadRequestError, match="replaces the prompt"):
        ask_of(kv_transfer_params={"prompt_token_ids": [1, 2, 3]})
    with pytest.raises(BadRequestError, match="vllm_xargs"):
        ask_of(vllm_xargs={"kv_transfer_params": {"prompt_token_ids": [1]}})
    assert ask_of(kv_transfer_params={"do_remote_prefill": True}, vllm_xargs={"a": 1}).sequences == 1


@pytest.mark.parametrize("surface", list(Surface))
@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"background": True}, "background"),
        ({"background": True, "store": True, "stream": True}, "background"),
        ({"kv_transfer_params": {"do_remote_decode": True}}, "kv_transfer_params.do_remote_decode"),
        ({"session_params": {"id": "s"}}, "session_params"),
    ],
)
def test_what_outlives_its_answer_or_continues_a_session_is_refused_by_name(
    ask_of: AskOf, surface: Surface, members: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        ask_of(surface, **members)
    assert (caught.value.code, caught.value.param) == ("unsupported_field", param)


@pytest.mark.parametrize("surface", list(Surface))
def test_a_background_that_is_off_is_accepted_and_one_that_is_no_boolean_is_not(
    ask_of: AskOf, surface: Surface
) -> None:
    assert ask_of(surface, background=False).sequences == ask_of(surface, background=None).sequences == 1
    with pytest.raises(BadRequestError, match="boolean"):
        ask_of(surface, background="true")


@pytest.mark.parametrize("surface", [Surface.CHAT, Surface.COMPLETIONS, Surface.RESPONSES, Surface.MESSAGES])
@pytest.mark.parametrize("name", ["n", "best_of", "n_cmpl"])
def test_sequences_are_charged_under_every_name_and_on_every_surface(
    ask_of: AskOf, surface: Surface, name: str
) -> None:
    assert ask_of(surface, **{name: 7}).sequences == 7


def test_a_positive_truncation_is_kept_and_an_open_one_refused(ask_of: AskOf) -> None:
    assert ask_of(truncate_prompt_tokens=10).truncate_prompt_tokens == 10
    for value in (-1, 0):
        with pytest.raises(BadRequestError, match="truncate_prompt_tokens"):
            ask_of(truncate_prompt_tokens=value)


def test_tgi_reads_its_cap_among_the_parameters(ask_of: AskOf) -> None:
    ask = ask_of(Surface.TGI_GENERATE_STREAM, parameters={"max_new_tokens": 9})
    assert (ask.max_new_tokens, ask.max_new_field, ask.stream) == (9, "parameters.max_new_tokens", True)


def test_responses_and_messages_name_their_own_caps(ask_of: AskOf) -> None:
    assert ask_of(Surface.RESPONSES, max_output_tokens=3).max_new_field == "max_output_tokens"
    assert ask_of(Surface.MESSAGES).max_new_tokens == 8
