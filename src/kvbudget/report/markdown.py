"""Decides how a report looks as Markdown: one file for a pull request or a wiki, no pictures needed."""

from collections.abc import Sequence

from kvbudget.planner.request import Finding, Plan
from kvbudget.report.amounts import gib, parts_of
from kvbudget.report.contents import MEMORY_CHART, report_of
from kvbudget.report.section import Section
from kvbudget.units import is_digits

_BAR_CELLS = 40
_SPECIAL = frozenset("\\`*[]<>|~&")


def markdown_report(plan: Plan, extras: Sequence[Section] = ()) -> str:
    """GitHub-flavoured Markdown; the same plan gives the same text."""
    report = report_of(plan, extras)
    verdict = report.verdict
    blocks = [
        f"# KV cache plan: {_plain(report.title)}",
        f"**{verdict.word}** on {_plain(report.place)}",
        f"> {_plain(verdict.sentence)}",
        _table(
            ("in ten seconds", "", ""),
            [(f"**{f.value}**", f.label, f.note) for f in report.facts],
            right=(0,),
            raw=(0,),
        ),
    ]
    for section in report.opening:
        blocks += _section(section, _bars(plan) if section.chart == MEMORY_CHART else "")
    blocks += _findings(report.findings)
    for section in report.closing:
        blocks += _section(section)
    return "\n\n".join(blocks) + "\n"


def markdown_sections(title: str, sections: Sequence[Section]) -> str:
    """A page of a title and sections; strings are plain text."""
    blocks = [f"# {_plain(title)}"]
    for section in sections:
        blocks += _section(section)
    return "\n\n".join(blocks) + "\n"


def _section(section: Section, picture: str = "") -> list[str]:
    blocks = [f"## {_plain(section.title)}"]
    blocks += [_plain(paragraph) for paragraph in section.paragraphs]
    if picture:
        blocks.append(picture)
    if section.header:
        right = tuple(column for column in range(len(section.header)) if section.is_numeric(column))
        blocks.append(_table(section.header, section.rows, right=right))
    if section.lines:
        blocks.append(
            "\n".join(
                f"{f'{number}.' if section.numbered else '-'} {_plain(line)}"
                for number, line in enumerate(section.lines, 1)
            )
        )
    return blocks


def _findings(findings: Sequence[Finding]) -> list[str]:
    if not findings:
        return ["## Findings", "None."]
    lines = [
        f"- **{finding.severity}** `{finding.code}`: {_plain(finding.message)}  \n  → {_plain(finding.fix)}"
        for finding in findings
    ]
    return ["## Findings", "\n".join(lines)]


def _bars(plan: Plan) -> str:
    """The split as text, in a block of fixed width."""
    parts = [part for part in parts_of(plan) if part.amount.bytes > 0]
    whole = max(plan.memory.total.bytes, sum(part.amount.bytes for part in parts), 1)
    lines, at = [], 0
    for part in parts:
        begin, end = (round(_BAR_CELLS * place / whole) for place in (at, at + part.amount.bytes))
        bar = "·" * begin + "█" * (end - begin) + "·" * (_BAR_CELLS - end)
        lines.append(f"{part.name:<12} {bar} {gib(part.amount.bytes):>8} GiB")
        at += part.amount.bytes
    return "\n".join(["```text", *lines, "```"]) if lines else ""


def _table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), raw: Sequence[int] = ()
) -> str:
    """`raw` columns carry markup of ours."""
    lines = [
        "| " + " | ".join(_plain(cell) for cell in header) + " |",
        "|" + "|".join("---:" if column in right else "---" for column in range(len(header))) + "|",
    ]
    for row in rows:
        cells = [cell if column in raw else _plain(cell) for column, cell in enumerate(row)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Text that Markdown shows as it is, on one line. An underscore inside a word means nothing to it."""
    text = " ".join(text.split())
    shown = []
    number, dot, _ = text.partition(". ")
    if dot and is_digits(number):  # a list of somebody else's
        text = text[len(number) :]
        shown.append(f"{number}\\")
    for index, character in enumerate(text):
        inside = text[index - 1 : index].isalnum() and text[index + 1 : index + 2].isalnum()
        special = character in _SPECIAL or (character == "_" and not inside)
        if index == 0 and character in "#+-" and text[1:2] == " ":  # a heading or a list
            special = True
        shown.append("\\" + character if special else character)
    return "".join(shown)
