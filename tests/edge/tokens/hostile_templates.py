"""Renders each hostile template under a limit on memory; prints how each ended, for test_hostile_templates.py."""

import json
import resource
import time
from datetime import datetime

from kvbudget.edge.openai.ask import Surface, parse_ask
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.openai.prompts import ChatPrompt
from kvbudget.edge.tokens import fuel
from kvbudget.edge.tokens.template import ChatTemplate
from kvbudget.errors import BadConfigError

MEMORY_BYTES = 3 * 1024**3
MAX_SECONDS = 0.2  # instead of 1: what it stops is the same, and busy machines take their time
GROW = "{% set ns = namespace(a='xxxxxxxx', l=['x']) %}"
BIG = GROW + "{% for i in range(20) %}{% set ns.a = ns.a + ns.a %}{% endfor %}"

TEMPLATES: dict[str, str] = {
    "doubling by +": GROW + "{% for i in range(60) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
    "doubling by ~": GROW + "{% for i in range(60) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}",
    "doubling a list": GROW + "{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
    "doubling by join": GROW + "{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] | join %}{% endfor %}",
    "doubling by the method join": GROW + "{% for i in range(60) %}{% set ns.a = ''.join([ns.a, ns.a]) %}{% endfor %}",
    "doubling by format": GROW + "{% for i in range(60) %}{% set ns.a = '%s%s' | format(ns.a, ns.a) %}{% endfor %}",
    "doubling by the method format": GROW
    + "{% for i in range(60) %}{% set ns.a = '{0}{0}'.format(ns.a) %}{% endfor %}",
    "doubling by %": GROW + "{% for i in range(60) %}{% set ns.a = '%s%s' % (ns.a, ns.a) %}{% endfor %}",
    "doubling by replace": GROW + "{% for i in range(60) %}{% set ns.a = ns.a | replace('x', 'xx') %}{% endfor %}",
    "doubling by the method replace": GROW
    + "{% for i in range(60) %}{% set ns.a = ns.a.replace('x', 'xx') %}{% endfor %}",
    "replacing nothing": BIG + "{{ ns.a.replace('', ns.a) | length }}",
    "many large values kept": BIG + "{% for i in range(1000) %}{% set ns.l = ns.l + [ns.a + i | string] %}{% endfor %}",
    "the same value printed often": BIG + "{{ [[ns.a] * 1000] * 1000 }}",
    "the same value as JSON often": BIG + "{{ ([[ns.a] * 1000] * 1000) | tojson | length }}",
    "the same value as a string often": BIG + "{{ ([[ns.a] * 1000] * 1000) | string | length }}",
    "the same value concatenated often": BIG + "{{ ('' ~ [[ns.a] * 1000] * 1000) | length }}",
    "the same value sorted often": BIG + "{{ ([ns.a] * 1000000) | sort | length }}",
    "the same value made unique often": BIG + "{{ ([ns.a] * 100000) | unique | list | length }}",
    "the same value mapped often": BIG + "{{ ([ns.a] * 1000000) | map('upper') | list | length }}",
    "searched often": BIG + "{{ (range(100000) | list * 10) | select('in', [ns.a] * 1000000) | list | length }}",
    "recursion that branches": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "a block that calls itself twice": "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "a recursive loop": "{% for a in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "a caller in a loop": "{% macro f() %}{% for i in range(9999) %}{{ caller() }}{% endfor %}{% endmacro %}"
    "{% call f() %}{% call f() %}{% call f() %}x{% endcall %}{% endcall %}{% endcall %}",
    "slices in a row": BIG + ("{% set b = ns.a" + "[1:]" * 50 + " %}") * 9,
    "comparisons in a row": BIG + ("{% if " + " or ".join(["('y' ~ ns.a) in ns.a"] * 50) + " %}{% endif %}") * 9,
    "additions in a row": BIG + ("{% if " + " or ".join(["(ns.a + 'y') == ns.a"] * 50) + " %}{% endif %}") * 9,
    "tabs": "{{ ('\t' * 1000000).expandtabs(9999) | length }}",
    "indented lines": "{{ ('\n' * 1000000) | indent(9999) | length }}",
    "a width for many": "{{ ('{:>9999}' * 10000).format(*range(10000)) | length }}",
    "lorem ipsum": "{{ lipsum(n=100000000) }}",
    "bytes of a number": "{{ (1).to_bytes(2000000000, 'big') }}",
    "a power for rounding": "{{ 1 | round(1000000000) }}",
    "batches": "{{ [] | batch(1000000000, 'x') | list }}",
    "slices": "{{ [1] | slice(1000000000) | list }}",
    "a translation": BIG + "{{ ns.a.translate({120: ns.a}) | length }}",
    "a date that is long": "{{ strftime_now('%Y' * 1000000) * 1000000 }}",
    "indented JSON": "{{ [1] | tojson(indent=100000000) }}",
    "deep indented JSON": "{% set ns = namespace(l=[0] * 100000) %}{% for i in range(150) %}{% set ns.l = [ns.l] %}"
    "{% endfor %}{% for i in range(999) %}{{ ns.l | tojson(indent=8) | length }}{% endfor %}",
    "numbers that grow": "{% set ns = namespace(a=7) %}{% for i in range(64) %}{% set ns.a = ns.a*ns.a %}{% endfor %}",
    "powers that grow": "{% set ns = namespace(a=7) %}{% for i in range(64) %}{% set ns.a = ns.a ** 64 %}{% endfor %}",
    "sums of lists": "{{ ([range(1000) | list] * 10000) | sum(start=[]) | length }}",
    "split into nothing": "{{ ('a ' * 8000000).split(' ') | length }}",
    "letters as a list": BIG + "{{ ns.a | list | length }}",
    "many turns": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "filters in many turns": BIG + "{% for a in range(9999) %}{{ ns.a | upper | length }}{% endfor %}",
    "an attribute of the sandbox": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "an attribute by the filter attr": "{{ '' | attr('__class__') }}",
    "format that reads attributes": "{{ '{0.__class__.__mro__}'.format('') }}",
    "format_map that reads attributes": "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "an indirect format": "{{ ['{0.__class__}'.format] | map('attr', '__call__') | list }}",
    "a module of jinja": "{{ self._TemplateReference__context.environment }}",
    "globals of a macro": "{% macro f() %}{% endmacro %}{{ f.__globals__ }}",
    "globals of a cycler": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "the request changed": "{{ messages.append({'role': 'x'}) }}",
    "the request changed by update": "{{ messages[0].update({'role': 'x'}) }}",
    "a file": "{% include '/etc/passwd' %}",
    "an import": "{% import 'os' as os %}",
}


def main() -> None:
    fuel.MAX_SECONDS = MAX_SECONDS
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    prompt = parse_ask(Surface.CHAT, b'{"messages":[{"role":"user","content":"hello"}]}').prompt
    assert isinstance(prompt, ChatPrompt)
    for name, source in TEMPLATES.items():
        started = time.thread_time()
        try:
            template = ChatTemplate(source, {}, datetime.now)
            started = time.thread_time()
            end = ["text", template.render(prompt, {})[:200]]
        except (BadRequestError, BadConfigError) as error:
            end = ["refused", str(error)]
        except BaseException as error:
            end = [type(error).__name__, str(error)[:200]]
        print(json.dumps([name, *end, time.thread_time() - started]), flush=True)
    assert prompt.messages == ({"role": "user", "content": "hello"},)


if __name__ == "__main__":
    main()
