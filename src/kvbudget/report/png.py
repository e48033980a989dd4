"""Decides how a report looks as one picture: verdict and figures above, memory and concurrency side by side."""

import textwrap
from html import escape

from kvbudget.planner.curve import concurrency_curve
from kvbudget.planner.request import Plan
from kvbudget.report.charts import COLOURS, curve_spec, memory_spec, png_of, svg_of
from kvbudget.report.contents import Fact, facts_of
from kvbudget.report.verdict import findings_told, place_of, verdict_of

WIDTH, HEIGHT = 1600, 900
_MARGIN = 48
_GAP = 20
_CHART_TOP = 372
_GOOD, _BAD, _WARN = "#0b7a4b", "#b42318", "#9a6700"
_LONGEST_TITLE = 52
_LONGEST_PLACE = 140
_LONGEST_SENTENCE = 118
_LONGEST_NOTE = 38
_SMALLER_SENTENCE = 160  # characters a line, in two lines of smaller type
_WORDS_A_LINE, _MOST_LINES, _LINE_HEIGHT = 88, 16, 23


def png_report(plan: Plan) -> bytes:
    """A PNG of 1600 x 900. Raises UnsupportedError when the chart packages are missing."""
    return png_of(_poster(plan))


def _poster(plan: Plan) -> str:
    verdict = verdict_of(plan)
    tone = _GOOD if verdict.good else _BAD
    chart_width = (WIDTH - 2 * _MARGIN - _GAP) // 2
    inner = chart_width - 40
    height = HEIGHT - _CHART_TOP - _MARGIN - 64
    memory = svg_of(memory_spec(plan, width=inner, height=height))
    drawn = any(point.requests for point in concurrency_curve(plan))
    second = _MARGIN + chart_width + _GAP
    chart_height = HEIGHT - _CHART_TOP - _MARGIN + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="Liberation Sans, Arial, sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#f6f8fa"/>',
        _text(_MARGIN, 84, plan.request.model.name, size=38, weight="bold", longest=_LONGEST_TITLE),
        _text(_MARGIN, 118, place_of(plan), size=19, colour=COLOURS["faint"], longest=_LONGEST_PLACE),
        f'<rect x="{_MARGIN}" y="142" width="{WIDTH - 2 * _MARGIN}" height="56" rx="8" fill="#ffffff" '
        f'stroke="{COLOURS["grid"]}"/>',
        f'<rect x="{_MARGIN}" y="142" width="8" height="56" rx="4" fill="{tone}"/>',
        *_verdict(verdict.word, verdict.sentence, tone),
        *_tiles(facts_of(plan)),
        _card(_MARGIN, chart_width, chart_height, "Memory of one GPU"),
        _placed(memory, _MARGIN + 20, _CHART_TOP + 48),
    ]
    if drawn:
        curve = svg_of(curve_spec(plan, width=inner, height=height))
        parts.append(_card(second, chart_width, chart_height, "Requests at once, by their length"))
        parts.append(_placed(curve, second + 20, _CHART_TOP + 48))
    else:
        parts.append(_card(second, chart_width, chart_height, "Not one request of any length fits"))
        parts += _findings(plan, second + 22, _CHART_TOP + 68)
    parts.append("</svg>")
    return "".join(parts)


def _verdict(word: str, sentence: str, tone: str) -> list[str]:
    """The word, and what it amounts to: in one line, or in two of smaller type."""
    left, lines, size, base = _MARGIN + 26, [sentence], 20, 177
    if len(sentence) > _LONGEST_SENTENCE:
        lines, size = _wrapped(sentence, _SMALLER_SENTENCE, 2), 16
        base = 165 if len(lines) > 1 else base
    beside = left + 20 + 13 * len(word)
    return [_text(left, 177, word, size=20, weight="bold", colour=tone)] + [
        _text(beside, base + 22 * number, line, size=size) for number, line in enumerate(lines)
    ]


def _findings(plan: Plan, left: int, top: int) -> list[str]:
    """What stands in the way, and what to do, where there is no curve to draw."""
    lines: list[tuple[str, str]] = []
    for finding in findings_told(plan):
        tone = _BAD if finding.severity == "error" else _WARN
        lines.append((f"{finding.severity}: {finding.code}", tone))
        lines += [(line, COLOURS["ink"]) for line in _wrapped(finding.message, _WORDS_A_LINE, _MOST_LINES)]
        lines += [(line, _GOOD) for line in _wrapped(f"→ {finding.fix}", _WORDS_A_LINE, _MOST_LINES)]
    more = [("…", COLOURS["faint"])] if len(lines) > _MOST_LINES else []
    return [
        _text(left, top + _LINE_HEIGHT * number, words, size=16, colour=colour)
        for number, (words, colour) in enumerate(lines[:_MOST_LINES] + more)
    ]


def _tiles(facts: tuple[Fact, ...]) -> list[str]:
    width = (WIDTH - 2 * _MARGIN - _GAP * (len(facts) - 1)) // len(facts)
    drawn = []
    for index, fact in enumerate(facts):
        left = _MARGIN + index * (width + _GAP)
        drawn += [
            f'<rect x="{left}" y="218" width="{width}" height="134" rx="8" fill="#ffffff" stroke="{COLOURS["grid"]}"/>',
            _text(left + 18, 248, fact.label, size=16, colour=COLOURS["faint"]),
            _text(left + 18, 289, fact.value, size=32, weight="bold"),
        ]
        for line, words in enumerate(_wrapped(fact.note, _LONGEST_NOTE, 3)):
            drawn.append(_text(left + 18, 312 + 17 * line, words, size=13.5, colour=COLOURS["faint"]))
    return drawn


def _wrapped(words: str, longest: int, most: int) -> list[str]:
    """At most `most` lines; what goes beyond them is cut."""
    lines = textwrap.wrap(" ".join(words.split()), longest, break_on_hyphens=False) or [""]
    if len(lines) > most:
        lines = [*lines[: most - 1], _cut(" ".join(lines[most - 1 :]), longest)]
    return lines


def _card(left: int, width: int, height: int, title: str) -> str:
    return (
        f'<rect x="{left}" y="{_CHART_TOP}" width="{width}" height="{height}" rx="10" fill="#ffffff" '
        f'stroke="{COLOURS["grid"]}"/>' + _text(left + 22, _CHART_TOP + 34, title, size=19, weight="bold")
    )


def _placed(svg: str, left: int, top: int) -> str:
    return f'<g transform="translate({left},{top})">{svg}</g>'


def _text(
    left: int,
    base: int,
    words: str,
    *,
    size: float,
    colour: str = COLOURS["ink"],
    weight: str = "normal",
    longest: int = 1000,
) -> str:
    return (
        f'<text x="{left}" y="{base}" font-size="{size}" font-weight="{weight}" fill="{colour}">'
        f"{escape(_cut(words, longest))}</text>"
    )


def _cut(words: str, longest: int) -> str:
    words = " ".join(words.split())
    return words if len(words) <= longest else words[: longest - 1].rstrip() + "…"
