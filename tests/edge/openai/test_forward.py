import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbudget.edge.openai.ask import Ask, Surface, parse_ask
from kvbudget.edge.openai.forward import forwarded_body, slimmed

AskOf = Callable[..., Ask]
POOLED = {Surface.EMBEDDINGS, Surface.POOLING, Surface.CLASSIFY, Surface.SCORE, Surface.RERANK}
GENERATING = [surface for surface in Surface if surface not in POOLED]
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6)
)
EXTRAS = st.dictionaries(
    st.sampled_from(["temperature", "stop", "x", "user", "seed", "metadata", "ключ", 'q"uote', "max_tokens "]),
    SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.text(max_size=4), SCALARS, max_size=3),
    max_size=5,
)


@given(
    st.sampled_from(GENERATING), EXTRAS, st.none() | st.integers(1, 10**6), st.integers(1, 10**6),
    st.booleans(), st.booleans(), st.sampled_from([None, 1]),
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_only_the_cap_changes_and_everything_else_keeps_value_and_order(
    minimal: dict[Surface, dict[str, Any]], surface: Surface, extras: dict[str, Any], asked: int | None, granted: int,
    first: bool, ascii_only: bool, indent: int | None,
) -> None:  # fmt: skip
    field = parse_ask(surface, json.dumps(minimal[surface]).encode()).max_new_field
    holder, _, name = field.rpartition(".")
    cap = {} if asked is None else {holder: {"a": 1, name: asked, "z": [2]}} if holder else {name: asked}
    members = {**cap, **extras, **minimal[surface]} if first else {**minimal[surface], **extras, **cap}
    members |= cap
    raw = json.dumps(members, ensure_ascii=ascii_only, indent=indent).encode()
    ask = parse_ask(surface, raw)
    sent = forwarded_body(ask, granted)
    assert forwarded_body(slimmed(ask), granted) == sent
    before, after = json.loads(raw), json.loads(sent)
    changed_before, changed_after = (before, after) if not holder else (before.pop(holder, {}), after.pop(holder, {}))
    assert changed_after.pop(name) == granted
    changed_before.pop(name, None)
    assert list(before.items()) == list(after.items())
    assert list(changed_before.items()) == list(changed_after.items())
    assert parse_ask(surface, sent).max_new_tokens == granted


@pytest.mark.parametrize("surface", sorted(POOLED))
def test_a_body_for_which_nothing_is_generated_is_sent_as_it_came(ask_of: AskOf, surface: Surface) -> None:
    ask = ask_of(surface)
    assert forwarded_body(ask, 1) is ask.raw


def test_a_body_that_already_says_so_is_the_same_object(ask_of: AskOf) -> None:
    ask = ask_of(max_tokens=7)
    assert forwarded_body(ask, 7) is ask.raw


def test_numbers_and_escapes_that_no_parser_keeps_come_through_as_they_are() -> None:
    raw = (
        b'{ "messages" : [{"role":"user","content":"\\u0041\\/ \xc3\xa9"}] ,\n"seed":123456789012345678901234567890,'
        b'"temperature":0.10000000000000000555, "max_tokens" : 99 , "x":1E+2}'
    )
    assert forwarded_body(parse_ask(Surface.CHAT, raw), 5) == raw.replace(b"99", b"5")


def test_a_missing_cap_is_put_in_front() -> None:
    raw = b'{"prompt":"a"}'
    assert forwarded_body(parse_ask(Surface.COMPLETIONS, raw), 16) == b'{"max_tokens":16,"prompt":"a"}'


def test_a_null_cap_is_replaced() -> None:
    raw = b'{"prompt":"a","max_tokens":null}'
    assert forwarded_body(parse_ask(Surface.COMPLETIONS, raw), 3) == b'{"prompt":"a","max_tokens":3}'


def test_a_field_of_that_name_deeper_inside_is_left_alone(ask_of: AskOf) -> None:
    ask = ask_of(metadata={"max_tokens": 1}, max_tokens=50)
    assert json.loads(forwarded_body(ask, 2)) == {**ask.body, "max_tokens": 2}


@pytest.mark.parametrize(
    ("alias", "value"),
    [("max_tokens", 10_000), ("n_predict", -1), ("n_predict", 1e9), ("max_new_tokens", "all"), ("max_new_tokens", 9)],
)
def test_a_larger_cap_under_another_name_is_lowered_too(ask_of: AskOf, alias: str, value: object) -> None:
    sent = json.loads(forwarded_body(ask_of(max_completion_tokens=8, **{alias: value}), 8))
    assert (sent["max_completion_tokens"], sent[alias]) == (8, 8)


def test_a_smaller_cap_under_another_name_stays(ask_of: AskOf) -> None:
    ask = ask_of(max_completion_tokens=8, max_tokens=3)
    assert forwarded_body(ask, 8) is ask.raw


@pytest.mark.parametrize("parameters", [None, {}, {"best_of": 2}, {"max_new_tokens": 4}, {"max_new_tokens": None}])
def test_tgi_gets_its_cap_among_the_parameters(ask_of: AskOf, parameters: dict[str, Any] | None) -> None:
    sent = json.loads(forwarded_body(ask_of(Surface.TGI_GENERATE, parameters=parameters), 5))
    assert sent == {"inputs": "hi", "parameters": {**(parameters or {}), "max_new_tokens": 5}}


def test_tgi_without_parameters_gets_them(ask_of: AskOf) -> None:
    sent = json.loads(forwarded_body(ask_of(Surface.TGI_GENERATE), 5))
    assert sent == {"inputs": "hi", "parameters": {"max_new_tokens": 5}}


def test_a_prompt_goes_on_as_the_ids_that_it_was_counted_by_and_nothing_else_changes() -> None:
    raw = b'{"model": "m",  "prompt": ["a \\u00e9 \\"b\\""], "max_tokens": 5, "seed": 1.50}'
    ask = parse_ask(Surface.COMPLETIONS, raw)
    ids = b"\x07\x00\x00\x00\x00\x01\x00\x00"
    assert forwarded_body(ask, 5, ids) == b'{"model": "m",  "prompt": [7,256], "max_tokens": 5, "seed": 1.50}'
    assert forwarded_body(ask, 4, [7, 8]) == b'{"model": "m",  "prompt": [7,8], "max_tokens": 4, "seed": 1.50}'
    assert forwarded_body(ask, 5) is raw


def test_of_a_body_that_waits_only_its_bytes_are_kept(ask_of: AskOf) -> None:
    ask = ask_of(max_tokens=7, metadata=[{}] * 1000, n_predict=[{}] * 1000)
    slim = slimmed(ask)
    assert slim.raw is ask.raw
    assert len(repr(slim._replace(raw=b""))) < 500
    assert forwarded_body(slim, 5) == forwarded_body(ask, 5)
