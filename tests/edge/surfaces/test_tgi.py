import json
from collections.abc import Callable

import pytest

from kvbudget.edge.openai.ask import Ask, Surface
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.openai.prompts import TextPrompt
from kvbudget.edge.openai.usage import Usage
from kvbudget.edge.surfaces import tgi

Parse = Callable[..., Ask]


def test_inputs_are_plain_text_and_parameters_are_read(parse: Parse) -> None:
    parameters = {"max_new_tokens": 9, "best_of": 3, "truncate": 100, "details": True, "top_n_tokens": 5}
    ask = parse(Surface.TGI_GENERATE, inputs="a", parameters=parameters)
    assert ask.prompt == TextPrompt(("a",), add_special_tokens=True)
    assert (ask.sequences, ask.max_new_tokens, ask.truncate_prompt_tokens, ask.paced) == (3, 9, 100, False)
    assert not ask.prompt_logprobs


def test_a_stream_of_one_sequence_is_paced(parse: Parse) -> None:
    ask = parse(Surface.TGI_GENERATE_STREAM, inputs="a")
    assert (ask.stream, ask.paced, ask.lead_events, ask.max_new_tokens) == (True, True, 0, None)


def test_logprobs_of_the_prompt_are_noticed(parse: Parse) -> None:
    assert parse(Surface.TGI_GENERATE, inputs="a", parameters={"decoder_input_details": True}).prompt_logprobs


@pytest.mark.parametrize(
    "parameters", [[], {"best_of": 0}, {"best_of": 5000}, {"max_new_tokens": 0}, {"truncate": 0}, {"truncate": "9"}]
)
def test_parameters_out_of_range_are_refused(parse: Parse, parameters: object) -> None:
    with pytest.raises(BadRequestError, match="parameters"):
        parse(Surface.TGI_GENERATE, inputs="a", parameters=parameters)


def test_usage_is_read_from_the_last_event() -> None:
    details = {"finish_reason": "length", "generated_tokens": 7, "seed": None, "input_length": 4}
    events = [{"index": 1, "token": {"text": '"generated_tokens":99'}}, {"generated_text": "x", "details": details}]
    tail = b"".join(b"data:" + json.dumps(event).encode() + b"\n\n" for event in events)
    assert tgi.usage(tail, []) == Usage(4, 7, None)  # type: ignore[arg-type]


def test_usage_is_read_from_the_headers_where_no_details_were_asked_for() -> None:
    headers = [(b"x-prompt-tokens", b"12"), (b"x-generated-tokens", b"34"), (b"x-total-time", b"9")]
    assert tgi.usage(b'{"generated_text":"a"}', headers) == Usage(12, 34, None)  # type: ignore[arg-type]
    assert tgi.usage(b'{"generated_text":"a"}', [(b"x-generated-tokens", b"a lot")]) is None


def test_counts_are_those_of_the_answer_and_not_of_one_of_its_parts() -> None:
    """With best_of each of the others is told too, behind all tokens of the best."""
    others = [{"generated_text": "b", "finish_reason": "length", "generated_tokens": 5, "input_length": 3}]
    details = {"generated_tokens": 7, "input_length": 4, "tokens": [{"text": "a"}], "best_of_sequences": others}
    assert tgi.usage(json.dumps({"generated_text": "a", "details": details}).encode(), []) == Usage(4, 7, None)  # type: ignore[arg-type]
    cut = json.dumps({"generated_text": "a", "details": {**details, "tokens": ["z" * 9000]}}).encode()
    assert tgi.usage(cut, []) is None
    assert tgi.usage(cut, [(b"x-prompt-tokens", b"4"), (b"x-generated-tokens", b"7")]) == Usage(4, 7, None)  # type: ignore[arg-type]


def test_a_last_event_whose_text_is_longer_than_the_tail_tells_them() -> None:
    details = {"finish_reason": "length", "generated_tokens": 7, "seed": None, "input_length": 4}
    token = {"details": {"generated_tokens": 1}}
    event = {"index": 9, "token": token, "generated_text": "z" * 9000, "details": details}
    assert tgi.usage(b"data:" + json.dumps(event).encode() + b"\n\n", []) == Usage(4, 7, None)  # type: ignore[arg-type]


def test_a_text_that_spells_a_count_is_none() -> None:
    assert tgi.usage(json.dumps({"generated_text": '"generated_tokens": 5'}).encode(), []) is None
