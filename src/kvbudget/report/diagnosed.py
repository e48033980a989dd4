"""Decides how a diagnosis is told to people: verdict, figures, what to do first, what would refute it; 80 columns."""

from collections.abc import Iterator
from textwrap import wrap

from kvbudget.diagnose.finding import WINDOW, Diagnosis, Finding

WIDTH = 80
_INDENT, _COST = "  ", 9
_NAMES = 34
_WHOLE = 1000  # from here on no figure needs its decimals
# The last part of a figure's name; the longer ones first.
_UNITS = ("tokens_per_s", "requests_per_s", "share", "requests", "tokens", "blocks", "times", "s")


def diagnosis_lines(diagnosis: Diagnosis, width: int = WIDTH) -> list[str]:
    """Plain lines, none longer than `width` unless a single word is."""
    lines = [*_first(diagnosis.first, width)]
    others = [finding for finding in diagnosis.findings if finding is not diagnosis.first]
    if others:
        lines += ["", "also"]
        for finding in others:
            lines += _para(f"{finding.code} ({finding.sure.level} confidence): {finding.message}", width, _INDENT)
            lines += _para(f"{finding.actions[0].cost}: {finding.actions[0].what}", width, _INDENT * 2, "-> ")
    for title, told in (
        ("read from", diagnosis.sources),
        ("to know beside it", diagnosis.notes),
        ("could not be read", diagnosis.problems),
    ):
        if told:
            lines += ["", title]
            for line in told:
                lines += _para(line, width, _INDENT)
    return lines


def _first(finding: Finding, width: int) -> Iterator[str]:
    yield from _para(f"{finding.code}: {finding.message}", width)
    where = f"; at {', '.join(finding.where)}" if finding.where else ""
    yield from _para(f"{finding.severity}, {finding.sure.level} confidence: {finding.sure.why}{where}", width)
    yield ""
    yield "evidence"
    for name, value in finding.evidence.items():
        if value is not None:
            yield from _figure(name, value, width)
        elif name == WINDOW and finding.evidence.get("looks", 1) != 1:
            yield from _figure(name, "not told: give --window", width)
    if finding.collect:
        yield ""
        yield "collect"
        for what in finding.collect:
            yield from _para(what, width, _INDENT)
    else:
        yield ""
        yield "what to do, cheapest first"
        for action in finding.actions:
            head = f"{_INDENT}{action.cost:<{_COST}}"
            yield from _para(action.what, width, " " * len(head), head=head)
            yield from _para(action.expected, width, " " * len(head), "-> ")
    yield ""
    yield "it would be refuted by"
    yield from _para(finding.refuted_by, width, _INDENT)


def _figure(name: str, value: float | str, width: int) -> Iterator[str]:
    unit = next((unit for unit in _UNITS if name.endswith(f"_{unit}")), "")
    label = name.removesuffix(f"_{unit}").replace("_", " ")
    told = value if isinstance(value, str) else _number(value, unit)
    yield from _para(told, width, " " * _NAMES, head=f"{_INDENT}{label:<{_NAMES - 2}}")


def _number(value: float, unit: str) -> str:
    if unit == "share":
        return f"{value * 100:.1f} %"
    shown = f"{value:,.0f}" if float(value).is_integer() or abs(value) >= _WHOLE else f"{value:,.3g}"
    return f"{shown} {unit.replace('_per_', '/')}".rstrip()


def wrapped(text: str, width: int) -> list[str]:
    """One paragraph."""
    return _para(text, width)


def _para(text: str, width: int, indent: str = "", mark: str = "", head: str = "") -> list[str]:
    first = head or indent + mark
    rest = indent + " " * len(mark)
    return wrap(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False) or [first.rstrip()]
