from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from kvbudget.edge.openai.ask import Ask
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.openai.prompts import ChatPrompt
from kvbudget.edge.tokens.template import MAX_TEMPLATE_CHARS, ChatTemplate
from kvbudget.errors import BadConfigError

ChatOf = Callable[..., Ask]


def _render(source: str, ask: Ask, **special: str) -> str:
    assert isinstance(ask.prompt, ChatPrompt)
    return ChatTemplate(source, special, lambda: datetime(2026, 1, 2, tzinfo=UTC)).render(ask.prompt, {})


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("  {% if true %}\n  a\n  {% endif %}\n", "  a\n"),  # trim_blocks and lstrip_blocks
        ("{{ {'é': '<a>'} | tojson }}", '{"é": "<a>"}'),
        ("{{ [1, 2] | tojson(indent=2) }}", "[\n  1,\n  2\n]"),
        ("{% for m in messages %}{{ m.content }}{% break %}{% endfor %}", "one"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "one"),
        ("{{ bos_token }}{{ strftime_now('%Y') }}", "<s>2026"),
        ("{{ missing }}{{ messages[0].missing }}{{ documents }}", "None"),
        ("{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ ';' if not loop.last }}{% endfor %}", "1/2;2/2"),
        ("{% for k, v in messages[0].items() %}{{ loop.length }}{{ k }}{% endfor %}", "2role2content"),
        ("{% for m in messages if m.content == 'two' %}{{ m.content }}{% else %}none{% endfor %}", "two"),
        ("{% for x in missing %}{% else %}none{% endfor %}", "none"),
        ("{{ '%s=%05d' % ('a', 7) }}{{ '-' * 3 }}{{ 'a'.center(3) }}{{ 2 ** 3 }}", "a=00007--- a 8"),
    ],
)
def test_templates_render_as_transformers_renders_them(chat: ChatOf, source: str, text: str) -> None:
    ask = chat([{"role": "user", "content": "one"}, {"role": "user", "content": "two"}])
    assert _render(source, ask, bos_token="<s>") == text


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.foo.bar }}", "undefined|foo"),
        ("{{ messages[0].content + 5 }}", "TypeError"),
        ("{{ ''.__class__.__mro__ }}", "unsafe|SecurityError"),
        ("{{ messages.append(1) }}", "unsafe|SecurityError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{% include 'x' %}", "loader"),
    ],
)
def test_what_the_template_rejects_is_the_requests_fault_in_its_own_words(
    chat: ChatOf, source: str, reason: str
) -> None:
    with pytest.raises(BadRequestError, match=reason) as caught:
        _render(source, chat("hi"))
    assert caught.value.code == "chat_template_error"


def test_a_continued_message_that_the_template_trims_is_cut_at_its_end(chat: ChatOf) -> None:
    ask = chat([{"role": "assistant", "content": "so "}], continue_final_message=True, add_generation_prompt=False)
    assert _render("[{{ messages[0].content | trim }}]</s>", ask) == "[so"


def test_a_continued_message_of_parts_is_cut_after_its_last_text(chat: ChatOf) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    ask = chat([{"role": "assistant", "content": parts}], continue_final_message=True, add_generation_prompt=False)
    source = "{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}"
    assert _render(source, ask) == "<a><b"


@pytest.mark.parametrize(
    ("source", "content"),
    [
        ("no messages", "x"),
        ("{{ messages[0].role }}{# content #}", "x"),
        ("{% for m in messages %}{% for p in m.content %}{{ p }}{% endfor %}{% endfor %}", []),
    ],
)
def test_a_message_that_is_not_printed_cannot_be_continued(chat: ChatOf, source: str, content: Any) -> None:
    ask = chat([{"role": "assistant", "content": content}], continue_final_message=True, add_generation_prompt=False)
    with pytest.raises(BadRequestError, match="continue_final_message"):
        _render(source, ask)


@pytest.mark.parametrize("source", ["{% if %}", "{{", "x" * (MAX_TEMPLATE_CHARS + 1), "{% nonsense %}"])
def test_a_template_that_cannot_be_compiled_is_refused_at_load(source: str) -> None:
    with pytest.raises(BadConfigError):
        ChatTemplate(source, {}, datetime.now)


def test_rendering_leaves_the_request_as_it_was(chat: ChatOf) -> None:
    ask = chat([{"role": "assistant", "content": ["a"]}], continue_final_message=True, add_generation_prompt=False)
    before = repr(ask.body)
    _render("{{ messages[0].content }}", ask)
    assert repr(ask.body) == before
