"""Decides how a plan is drawn: what shares the memory, and how many requests run at once by their length.

Altair writes the specification, vl-convert draws it offline. Colours are those of a light page; a page may restyle
them (`COLOURS`), since no two roles share one.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kvbudget.errors import UnsupportedError
from kvbudget.extras import install
from kvbudget.planner.curve import concurrency_curve, requests_at
from kvbudget.planner.request import Plan
from kvbudget.report.amounts import gib, interval_of, parts_of
from kvbudget.units import GIB

if TYPE_CHECKING:
    import altair

Spec = dict[str, Any]

COLOURS: Mapping[str, str] = MappingProxyType(
    {
        "ink": "#1d2733",
        "faint": "#5c6a79",
        "grid": "#e3e8ee",
        "axis": "#b4bfca",
        "reserve": "#d3dae2",
        "weights": "#3d5a80",
        "activation": "#7a94b5",
        "cuda_graphs": "#9c89b8",
        "non_torch": "#c08497",
        "kv": "#12907f",
        "limit": "#c2410c",
    }
)
# Of the fonts that every system has one of; the renderer brings the first.
_FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
_POINTS_PER_DOUBLING = 16
_LONG_STEP = 2  # so few requests hold over a wide range of lengths
_NEAR_THE_END, _AT_THE_END, _ROOM_FOR_A_LABEL = 0.6, 0.85, 0.25  # of the whole axis
_NEAR = 1.3  # lengths whose labels would lie on one another


def memory_spec(plan: Plan, *, width: int, height: int) -> Spec:
    """A Vega-Lite specification: bars from 0 to the card's end, each part where the one before it ended."""
    alt = altair_module()
    rows, at = [], 0
    for part in parts_of(plan):
        size = max(0, part.amount.bytes)
        if not size and not plan.memory.usable.bytes:  # the pool was given: nobody asked what else there is
            continue
        between = interval_of(part.amount)
        said = f"{gib(part.amount.bytes)}" + (f" ({gib(between[0])} to {gib(between[1])})" if between else "")
        rows.append(_bar(part.key, part.name, at, at + size, said))
        at += size
    total, usable = plan.memory.total.bytes, plan.memory.usable.bytes
    if usable and total > max(at, usable):
        said = f"{gib(total - max(at, usable))}: the engine takes {plan.memory.usable.note}"
        rows.append(_bar("reserve", "kept free", max(at, usable), total, said))
    order = [row["part"] for row in rows]
    end = max(at, total) / GIB or 1
    for row in rows:  # a label is left of a bar that ends near the lines of card and share, which it would cross
        row["left"] = row["to"] > _NEAR_THE_END * end and row["from"] > _ROOM_FOR_A_LABEL * end
    crowded = any(row["to"] > _AT_THE_END * end and not row["left"] for row in rows)
    keys = [row["key"] for row in rows]
    base = alt.Chart(alt.Data(values=rows))
    y = alt.Y("part:N", sort=order, title=None, axis=alt.Axis(labelFontSize=13, ticks=False, domain=False, grid=False))
    x = alt.X(
        "from:Q", title="GiB of one GPU", scale=alt.Scale(domain=[0, end * (1.4 if crowded else 1.06)], nice=False)
    )
    bars = base.mark_bar(height=alt.RelativeBandSize(0.62), cornerRadius=2).encode(
        x=x,
        x2="to:Q",
        y=y,
        color=alt.Color("key:N", scale=alt.Scale(domain=keys, range=[COLOURS[k] for k in keys]), legend=None),
    )
    style = {"fontSize": 13, "color": COLOURS["ink"]}
    labels = [
        base.transform_filter(test)
        .mark_text(align=align, dx=shift, **style)
        .encode(x=alt.X(f"{edge}:Q"), y=y, text="said:N")
        for test, align, shift, edge in (("!datum.left", "left", 6, "to"), ("datum.left", "right", -6, "from"))
    ]
    layers = [bars, *labels]
    layers += [
        _limit(alt, "x", size / GIB, name) for size, name in ((total, "card"), (usable, "usable")) if usable and size
    ]
    return finished_chart(alt.layer(*layers), width, height)


def curve_spec(plan: Plan, *, width: int, height: int) -> Spec:
    """A Vega-Lite specification: requests at once by length, both axes logarithmic, the lengths that matter marked."""
    alt = altair_module()
    points = [point for point in concurrency_curve(plan, per_doubling=_POINTS_PER_DOUBLING) if point.requests]
    if not points:
        note = alt.Chart(alt.Data(values=[{"text": "Not one request of any length fits."}]))
        return finished_chart(note.mark_text(fontSize=15, color=COLOURS["limit"]).encode(text="text:N"), width, height)
    rows = [{"length": point.length, "requests": point.requests} for point in points]
    lengths = [row["length"] for row in rows]
    most = max(row["requests"] for row in rows)
    base = alt.Chart(alt.Data(values=rows))
    ticks = _doublings(lengths[0], plan.pool.max_model_len)
    x = alt.X(
        "length:Q",
        title="tokens of a request (prompt and output)",
        scale=alt.Scale(
            type="log", base=2, domain=[lengths[0], max(plan.pool.max_model_len, lengths[0] + 1)], nice=False
        ),
        axis=alt.Axis(values=ticks, labelExpr=_SHORT_LENGTH),
    )
    y = alt.Y(
        "requests:Q",
        title="requests at once",
        scale=alt.Scale(type="log", domain=[0.8, most * 1.9], nice=False),
        axis=alt.Axis(values=_ones_twos_fives(most), format=",d"),
    )
    # Between two points it is the longer one's number that holds.
    area = base.mark_area(interpolate="step-before", fill=COLOURS["kv"], fillOpacity=0.16, line=False).encode(
        x=x, y=y, y2=alt.datum(0.8)
    )
    line = base.mark_line(interpolate="step-before", color=COLOURS["kv"], strokeWidth=2.5).encode(x=x, y=y)
    layers = [area, line]
    seqs = plan.settings.max_num_seqs
    if seqs <= most * 1.5:
        layers.append(_limit(alt, "y", seqs, f"max_num_seqs {seqs:,}"))
    marks = _marks(plan)
    if marks:
        marked = alt.Chart(alt.Data(values=marks))
        end = "datum.length > " + str(int((lengths[0] * plan.pool.max_model_len) ** 0.5))
        layers.append(marked.mark_point(filled=True, size=64, color=COLOURS["limit"], opacity=1).encode(x=x, y=y))
        # The curve falls: right of a point and above it is room, at the right end only below it or over a long step.
        for test, align, shift in (
            (f"{end} && datum.requests > {_LONG_STEP}", "right", 16),
            (f"{end} && datum.requests <= {_LONG_STEP}", "right", -13),
            (f"!({end})", "left", -13),
        ):
            layers.append(
                marked.transform_filter(test)
                .mark_text(align=align, dx=6, dy=shift, fontSize=12.5, color=COLOURS["ink"])
                .encode(x=x, y=y, text="said:N")
            )
    return finished_chart(alt.layer(*layers), width, height)


def svg_of(spec: Spec) -> str:
    """The picture as one SVG element, the same for the same specification."""
    svg: str = _converter().vegalite_to_svg(json.dumps(spec, sort_keys=True))
    return svg


def png_of(svg: str, *, scale: float = 1.0) -> bytes:
    """An SVG drawn to PNG, `scale` pixels to each of its units."""
    png: bytes = _converter().svg_to_png(svg, scale=scale)
    return png


# 1k, 64k, 1m; anything else as it is.
_SHORT_LENGTH = (
    "datum.value >= 1048576 && datum.value % 1048576 == 0 ? datum.value / 1048576 + 'm' : "
    "datum.value >= 1024 && datum.value % 1024 == 0 ? datum.value / 1024 + 'k' : datum.value"
)


def _bar(key: str, part: str, begin: int, end: int, said: str) -> dict[str, Any]:
    return {"key": key, "part": part, "from": begin / GIB, "to": end / GIB, "said": said}


def _limit(alt: Any, channel: str, at: float, name: str) -> Any:
    """A dashed line across, with its name."""
    chart = alt.Chart(alt.Data(values=[{"at": at, "name": name}]))
    rule = chart.mark_rule(strokeDash=[5, 4], color=COLOURS["faint"], strokeWidth=1.2)
    style = {"fontSize": 12, "color": COLOURS["faint"]}
    if channel == "x":
        text = chart.mark_text(align="left" if name == "card" else "right", baseline="bottom", dy=-3, **style).encode(
            x="at:Q", y=alt.value(0), text="name:N"
        )
        return rule.encode(x="at:Q") + text
    text = chart.mark_text(align="left", baseline="bottom", dx=6, dy=-3, **style).encode(
        y="at:Q", x=alt.value(0), text="name:N"
    )
    return rule.encode(y="at:Q") + text


def _marks(plan: Plan) -> list[dict[str, Any]]:
    """The lengths that were asked for and the longest, those with room for none left out."""
    ceilings, longest = plan.ceilings, plan.pool.max_model_len
    named = []
    if plan.request.knows_lengths:
        counts = (ceilings.p50, ceilings.p95, ceilings.p99)
        named += list(zip(ceilings.lengths, counts, ("p50", "p95", "p99"), strict=True))
    named.append((longest, ceilings.ceiling, "max_model_len"))
    if not ceilings.ceiling:
        largest = plan.pool.largest_max_model_len
        named.append((largest, requests_at(plan, largest).requests, f"longest that fits, {largest:,} tokens"))
    marks: list[dict[str, Any]] = []
    for length, count, name in sorted(named):
        if not count:
            continue
        said = f"{name}: {count:,}"
        if marks and length < marks[-1]["length"] * _NEAR:  # two labels at one place: one that says both
            before = marks[-1]["said"]
            marks[-1]["said"] = ""
            said = f"{before}, {said}" if before else said
        marks.append({"length": length, "requests": count, "said": said})
    return marks


def _doublings(shortest: int, longest: int) -> list[int]:
    every = [2**power for power in range(31) if shortest <= 2**power <= longest]
    step = -(-len(every) // 9)
    return every[::step]


def _ones_twos_fives(most: int) -> list[int]:
    found = [factor * 10**power for power in range(8) for factor in (1, 2, 5)]
    return [number for number in found if number <= most * 1.9]


def finished_chart(chart: "altair.Chart | altair.LayerChart", width: int, height: int) -> Spec:
    """The specification in our style, fitted into so many pixels."""
    spec: Spec = (
        chart.properties(width=width, height=height, autosize={"type": "fit", "contains": "padding"})
        .configure(background="transparent", font=_FONT, padding=8)
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=COLOURS["faint"],
            titleColor=COLOURS["faint"],
            gridColor=COLOURS["grid"],
            domainColor=COLOURS["axis"],
            tickColor=COLOURS["axis"],
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight="normal",
            titlePadding=8,
            labelLimit=300,
        )
        .to_dict()
    )
    return spec


def altair_module() -> Any:
    """The library that writes specifications. Raises UnsupportedError when it is not installed."""
    try:
        import altair
    except ImportError as error:
        raise _missing("altair") from error
    return altair


def _converter() -> Any:
    try:
        import vl_convert
    except ImportError as error:
        raise _missing("vl-convert-python") from error
    return vl_convert


def _missing(package: str) -> UnsupportedError:
    return UnsupportedError(f"charts need {package}, which is not installed", fix=install("report"))
