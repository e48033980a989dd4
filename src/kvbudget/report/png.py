"""Decides how a report looks as one picture: verdict and figures above, memory and concurrency side by side."""

from html import escape

from kvbudget.planner.request import Plan
from kvbudget.report.charts import COLOURS, curve_spec, memory_spec, png_of, svg_of
from kvbudget.report.contents import Fact, facts_of
from kvbudget.report.verdict import place_of, verdict_of

WIDTH, HEIGHT = 1600, 900
_MARGIN = 48
_GAP = 20
_CHART_TOP = 372
_GOOD, _BAD = "#0b7a4b", "#b42318"
_LONGEST_TITLE = 52
_LONGEST_PLACE = 140
_LONGEST_SENTENCE = 118
_LONGEST_NOTE = 37


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
    curve = svg_of(curve_spec(plan, width=inner, height=height))
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
        f'<text x="{_MARGIN + 26}" y="177" font-size="20"><tspan font-weight="bold" fill="{tone}">{verdict.word}'
        f'</tspan><tspan dx="14" fill="{COLOURS["ink"]}">{escape(_cut(verdict.sentence, _LONGEST_SENTENCE))}</tspan>'
        "</text>",
        *_tiles(facts_of(plan)),
        _card(_MARGIN, chart_width, chart_height, "Memory of one GPU"),
        _placed(memory, _MARGIN + 20, _CHART_TOP + 48),
        _card(second, chart_width, chart_height, "Requests at once, by their length"),
        _placed(curve, second + 20, _CHART_TOP + 48),
        "</svg>",
    ]
    return "".join(parts)


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
        for line, words in enumerate(_two_lines(fact.note)):
            drawn.append(_text(left + 18, 316 + 20 * line, words, size=14, colour=COLOURS["faint"]))
    return drawn


def _two_lines(note: str) -> list[str]:
    """At most two lines of what a tile has room for."""
    if len(note) <= _LONGEST_NOTE:
        return [note]
    space = note.rfind(" ", 0, _LONGEST_NOTE)
    space = space if space > 0 else _LONGEST_NOTE
    return [note[:space], _cut(note[space:].strip(), _LONGEST_NOTE)]


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
    size: int,
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
