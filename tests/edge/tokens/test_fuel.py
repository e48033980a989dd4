import re
from collections.abc import Callable
from datetime import datetime

import pytest

from kvbudget.edge.openai.ask import Ask
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.openai.prompts import ChatPrompt
from kvbudget.edge.tokens import fuel
from kvbudget.edge.tokens.template import ChatTemplate


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
        "{% for a in range(90000) %}{% for b in 'x' | list * 1000 %}{% endfor %}{% endfor %}",
        "{% for a in range(1000) %}{% for b in range(1000) | select %}{% for c in [1] %}{% endfor %}"
        "{% endfor %}{% endfor %}",
        "{{ 'a' * 200000000 }}",
        "{{ 200000000 * 'a' }}",
        "{% set x = [0] * 200000000 %}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ 9 ** 64 ** 64 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ '{:>{w}}'.format(1, w=999999999) }}",
        "{{ 'a'.ljust(999999999) }}",
        "{{ 'a'.center(999999999) }}",
        "{{ 'a' | center(999999999) }}",
        "{{ 'a\na' | indent(999999999) }}",
    ],
)
def test_work_beyond_use_is_stopped(chat: Callable[..., Ask], source: str) -> None:
    prompt = chat("hi").prompt
    assert isinstance(prompt, ChatPrompt)
    with pytest.raises(BadRequestError, match="cannot be rendered"):
        ChatTemplate(source, {}, datetime.now).render(prompt, {})


def test_endless_output_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuel, "MAX_OUTPUT_CHARS", 10)
    assert fuel.bounded_text(["12345", "67890"]) == "1234567890"
    with pytest.raises(fuel.OutOfFuelError, match=re.escape("10 characters")):
        fuel.bounded_text(iter(["12345", "67890", "1"]))


def test_every_rendering_starts_with_full_fuel(chat: Callable[..., Ask]) -> None:
    prompt = chat("hi").prompt
    assert isinstance(prompt, ChatPrompt)
    template = ChatTemplate("{% for a in range(90000) %}{% endfor %}done", {}, datetime.now)
    for _ in range(fuel.MAX_TURNS // 90_000 + 2):
        assert template.render(prompt, {}) == "done"
