import jinja2
import pytest

from kvbudget.edge.tokens.content_format import reads_parts


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("{{ messages }}", False),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
        ("{% for m in messages %}{% for p in m.content %}{{ p }}{% endfor %}{% endfor %}", True),
        ("{% for m in messages %}{% for p in m['content'] %}{{ p }}{% endfor %}{% endfor %}", True),
        ("{% for m in messages[1:] %}{% for p in m['content'] | list %}{{ p }}{% endfor %}{% endfor %}", True),
        (
            "{% set all = messages %}{% for m in all %}{% for p in m.content %}{% endfor %}{% endfor %}",
            True,
        ),
        (
            "{% set a = messages[1:] %}{% set b = a %}{% for m in b %}{% for p in m.content %}{% endfor %}{% endfor %}",
            True,
        ),
        ("{% for m in messages %}{% set content = m.content %}{% for p in content %}{% endfor %}{% endfor %}", True),
        ("{% for m in messages %}{% set text = m.content %}{% for p in text %}{% endfor %}{% endfor %}", False),
        ("{% for t in tools %}{% for p in t.content %}{% endfor %}{% endfor %}", False),
        ("{% for m in messages %}{% for c in m.tool_calls %}{% endfor %}{% endfor %}", False),
        (
            "{% macro show(x) %}{% for p in x %}{{ p }}{% endfor %}{% endmacro %}"
            "{% for m in messages %}{{ show(m.content) }}{% endfor %}",
            True,
        ),
        (
            "{% macro show(y, x=1) %}{% for p in x %}{{ p }}{% endfor %}{% endmacro %}"
            "{% for m in messages %}{{ show(1, x=m.content) }}{% endfor %}",
            True,
        ),
        (
            "{% macro show(content) %}{% for p in content %}{{ p }}{% endfor %}{% endmacro %}"
            "{% for m in messages %}{{ show(m.name) }}{% endfor %}",
            False,
        ),
    ],
)
def test_a_loop_over_a_messages_content_means_parts(source: str, parts: bool) -> None:
    assert reads_parts(jinja2.Environment().parse(source)) is parts
