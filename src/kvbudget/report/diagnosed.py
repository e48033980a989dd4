"""Decides how a diagnosis is told to people: verdict, figures, what to do first, what would refute it; 80 columns."""

from collections.abc import Iterator, Sequence
from textwrap import wrap

from kvbudget.diagnose.finding import WINDOW, Diagnosis, Finding

WIDTH = 80
_INDENT, _COST = "  ", 9
_NAMES = 34
_LEAST_EVIDENCE = 4  # lines of it that a low screen keeps: the message has the figures that matter most
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


def screen_lines(diagnosis: Diagnosis, width: int, height: int) -> list[str]:
    """At most `height` lines for who watches: the verdict, what to do first, then as much evidence as fits.

    What is left out is counted; without --watch all of it is told.
    """
    finding = diagnosis.first
    lines = [*_verdict(finding, width)]
    others = [other.code for other in diagnosis.findings if other is not finding]
    if others:
        lines += _para(f"also: {', '.join(others)}", width)
    title, things = _to_do(finding, width)
    figures = [*_evidence(finding, width)]
    lines += _block(title, things, height - len(lines) - min(len(figures) + 2, _LEAST_EVIDENCE))
    lines += _block("evidence", [[figure] for figure in figures], height - len(lines))
    refuted = ["", "it would be refuted by", *_para(finding.refuted_by, width, _INDENT)]
    return [*lines, *(refuted if len(lines) + len(refuted) <= height else [])][:height]


def _block(title: str, things: Sequence[list[str]], height: int) -> list[str]:
    """Whole things as far as they fit below their title, the first in any case, and how many more there are."""
    if not things:
        return []
    room, kept = height - 2, 1
    while kept < len(things) and sum(map(len, things[: kept + 1])) + (kept + 1 < len(things)) <= room:
        kept += 1
    left = len(things) - kept
    more = [f"{_INDENT}({left} more)"] if left else []
    return ["", title, *(line for thing in things[:kept] for line in thing), *more]


def _first(finding: Finding, width: int) -> Iterator[str]:
    yield from _verdict(finding, width)
    yield ""
    yield "evidence"
    yield from _evidence(finding, width)
    title, things = _to_do(finding, width)
    yield ""
    yield title
    for thing in things:
        yield from thing
    yield ""
    yield "it would be refuted by"
    yield from _para(finding.refuted_by, width, _INDENT)


def _verdict(finding: Finding, width: int) -> Iterator[str]:
    yield from _para(f"{finding.code}: {finding.message}", width)
    where = f"; at {', '.join(finding.where)}" if finding.where else ""
    yield from _para(f"{finding.severity}, {finding.sure.level} confidence: {finding.sure.why}{where}", width)


def _evidence(finding: Finding, width: int) -> Iterator[str]:
    for name, value in finding.evidence.items():
        if value is not None:
            yield from _figure(name, value, width)
        elif name == WINDOW and finding.evidence.get("looks", 1) != 1:
            yield from _figure(name, "not told: give --window", width)


def _to_do(finding: Finding, width: int) -> tuple[str, list[list[str]]]:
    """What would have to be seen, or else what is to be done; the lines of each."""
    if finding.collect:
        return "collect", [_para(what, width, _INDENT) for what in finding.collect]
    told = []
    for action in finding.actions:
        head = f"{_INDENT}{action.cost:<{_COST}}"
        what = _para(action.what, width, " " * len(head), head=head)
        told.append(what + _para(action.expected, width, " " * len(head), "-> "))
    return "what to do, cheapest first", told


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
