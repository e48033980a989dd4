"""Decides how runs of the simulator are told: tables of runs, tenants and refusals, and charts."""

from collections.abc import Sequence
from typing import Any

from kvbudget.report.charts import COLOURS, Spec, altair_module, finished_chart, svg_of
from kvbudget.report.html import html_sections
from kvbudget.report.markdown import markdown_sections
from kvbudget.report.section import Section
from kvbudget.report.simulated import named, notes_on, simulated_lines

Document = dict[str, Any]

_TITLE = "Simulated admission"
_GOODPUT, _ENDINGS = "goodput", "endings"
_WIDTH, _ROW_PIXELS, _LABEL_PIXELS, _LINES_PIXELS = 980, 40, 440, 380
_MOST_TICKS = 12
_ROLES = ("kv", "weights", "limit", "cuda_graphs", "non_torch", "activation")  # colours of policies
# Columns that give way where there is no room for all, the first first.
GIVE_WAY = (
    "gap", "wasted", "pool", "recomputed", "preempt", "why", "gave up", "vs oracle", "requests", "refused", "finished",
    "TTFT",
)  # fmt: skip
_OF_THE_ENGINE = ("gap", "preempt", "recomputed", "wasted", "pool")
_LEGEND = {
    "refused": "refused: and not served later",
    "gave up": "gave up: left without a first token",
    "goodput": "goodput: output tokens per second of answers within the SLO",
    "in SLO": "in SLO: share of all requests",
    "vs oracle": "vs oracle: goodput beside that of policy oracle (learned, told every output length; no upper bound)",
    "TTFT": "TTFT: time to first token, median/p99 in seconds",
    "gap": "gap: between two tokens, p99 in seconds",
    "preempt": "preempt: preemptions",
    "recomputed": "recomputed: share of all computed tokens, after preemptions",
    "wasted": "wasted: share of all computed tokens, for clients who gave up",
    "pool": "pool: mean use",
}


def runs_section(documents: Sequence[Document]) -> Section:
    """A row for each run, and notes."""
    swept = _swept_names(documents)
    rows = tuple((*_point(document, swept), *_cells(document)) for document in documents)
    header = (*swept, *_COLUMNS)
    return Section("Runs", (legend_of(header),), header, rows, tuple(notes_on(documents)), _GOODPUT, numbered=False)


def _two_tables(runs: Section) -> tuple[Section, Section]:
    """What became of requests, and what the engine did: in one, a page would hide the last columns."""
    requests, engine = runs, runs._replace(title="The engine's work", lines=(), chart="")
    for name in runs.header:
        if name in _OF_THE_ENGINE:
            requests = without(requests, name)
        elif name in _COLUMNS and name != "policy":
            engine = without(engine, name)
    return (
        requests._replace(paragraphs=(legend_of(requests.header),)),
        engine._replace(paragraphs=(legend_of(engine.header),)),
    )


def legend_of(header: Sequence[str]) -> str:
    """What the columns of runs mean."""
    return "; ".join(_LEGEND[name] for name in header if name in _LEGEND) + "."


def without(section: Section, name: str) -> Section:
    """The table without the columns of this name."""
    kept = [column for column, header in enumerate(section.header) if header != name]
    return section._replace(
        header=tuple(section.header[column] for column in kept),
        rows=tuple(tuple(row[column] for column in kept) for row in section.rows),
    )


def parts_sections(documents: Sequence[Document]) -> list[Section]:
    """Tenants, and classes, of each run, where there is more than one of them."""
    sections = []
    for kind, title, name in (("tenants", "Tenants", "tenant"), ("classes", "Classes (priorities)", "class")):
        rows = [
            (named(run), part_name, f"{part['requests']:,}", f"{part['finished']:,}", f"{part['refused']:,}",
             f"{part['timed_out']:,}", f"{part['goodput_tokens_per_s']:,.0f}", _fraction(part["slo_fraction"]),
             _ttft(part), _reasons(part))
            for run in documents
            if len(run.get(kind, {})) > 1
            for part_name, part in run[kind].items()
        ]  # fmt: skip
        if rows:
            header = ("run", name, "requests", "finished", "refused", "gave up", "goodput", "in SLO", "TTFT", "why")
            sections.append(Section(title, header=header, rows=tuple(rows)))
    return sections


def refusals_section(documents: Sequence[Document]) -> Section:
    """Why tries were refused, in each run that refused any."""
    rows = tuple((named(run), f"{run['tries']:,}", _reasons(run)) for run in documents if run["refusals"])
    said = (_DEADLINE,) if any("deadline" in run["refusals"] for run in documents) else ()
    return Section("Refusals", said, ("run", "tries", "refused, by reason") if rows else (), rows, chart=_ENDINGS)


_DEADLINE = (
    "deadline: it would have waited, or has waited, too long for a good answer: under learned and oracle 0.8 of "
    "--slo-ttft, or the client's own deadline; under the others --queue-seconds."
)


def markdown_simulation(documents: Sequence[Document]) -> str:
    """The report as Markdown."""
    return markdown_sections(_title(documents), _sections(documents))


def html_simulation(documents: Sequence[Document]) -> str:
    """The report as one HTML file with charts. Raises UnsupportedError when the chart packages are missing."""
    height = 60 + _ROW_PIXELS * len(documents)
    charts = {
        _GOODPUT: (
            svg_of(_goodput_spec(documents, height)),
            "Output tokens per second of answers within the SLO, for each run.",
        ),
        _ENDINGS: (svg_of(_endings_spec(documents, height)), "How the requests of each run ended."),
    }
    return html_sections(_title(documents), "kvbudget simulate", _sections(documents), charts)


def _sections(documents: Sequence[Document]) -> list[Section]:
    told = simulated_lines(documents)
    sections = [
        *([Section("What was simulated", lines=tuple(told), numbered=False)] if told else []),
        *_two_tables(runs_section(documents)),
        refusals_section(documents),
        *parts_sections(documents),
    ]
    sections.append(
        Section(
            "How to read it",
            (
                "Within the SLO is an answer whose first token came in time and whose later gaps were short enough. A "
                "client that gave up is loss: what was computed for it is wasted.",
                "oracle is the gate `learned`, told every true output length. It is no upper bound: another may do "
                "better. Times come from a linear model of an engine step, an assumption: they compare policies, not "
                "machines.",
            ),
        )
    )
    return sections


_COLUMNS = (
    "policy", "finished", "refused", "gave up", "goodput", "in SLO", "vs oracle", "TTFT", "gap", "preempt",
    "recomputed", "wasted", "pool",
)  # fmt: skip


def _cells(run: Document) -> tuple[str, ...]:
    scheduled = run["scheduled_tokens"]
    return (
        run["policy"],
        f"{run['finished']:,}",
        f"{run['refused']:,}",
        f"{run['timed_out']:,}",
        f"{run['goodput_tokens_per_s']:,.0f}",
        _fraction(run["slo_fraction"]),
        "-" if run["oracle_ratio"] is None else f"{run['oracle_ratio']:.2f}",
        _ttft(run),
        _number(run["gap_s"]["p99"]),
        f"{run['preemptions']:,}",
        f"{run['recomputed_tokens'] / scheduled:.1%}" if scheduled else "-",
        f"{run['wasted_tokens'] / scheduled:.1%}" if scheduled else "-",
        "-" if run["pool_use_mean"] is None else f"{run['pool_use_mean']:.0%}",
    )


def _ttft(run: Document) -> str:
    return f"{_number(run['ttft_s']['p50'])}/{_number(run['ttft_s']['p99'], 1)}"


def _reasons(run: Document) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in run["refusals"].items()) or "-"


def _goodput_spec(documents: Sequence[Document], height: int) -> Spec:
    """Lines over the values of a sweep of one number, else bars; a colour for each policy."""
    policies = list(dict.fromkeys(str(run["policy"]) for run in documents))
    swept = _swept_names(documents)
    values = [run.get("sweep", {}).get(swept[0]) for run in documents] if len(swept) == 1 else []
    rows = [
        {"run": _row_name(run), "policy": run["policy"], "tokens": run["goodput_tokens_per_s"],
         "said": f"{run['goodput_tokens_per_s']:,.0f}", "value": value}
        for run, value in zip(documents, values or [None] * len(documents), strict=True)
    ]  # fmt: skip
    alt = altair_module()
    base = alt.Chart(alt.Data(values=rows))
    most = max((row["tokens"] for row in rows), default=0) or 1
    title, scale = "output tokens per second within the SLO", alt.Scale(domain=[0, most * 1.12], nice=False)
    colours = [COLOURS[_ROLES[at % len(_ROLES)]] for at in range(len(policies))]
    colour = alt.Color(
        "policy:N",
        title=None,
        scale=alt.Scale(domain=policies, range=colours),
        legend=alt.Legend(orient="top", labelColor=COLOURS["faint"], labelLimit=_LABEL_PIXELS),
    )
    if len(set(values)) > 1 and all(isinstance(value, int | float) for value in values):
        ticks = sorted(set(values))
        axis = alt.Axis(values=ticks) if len(ticks) <= _MOST_TICKS else alt.Axis()
        x = alt.X("value:Q", title=swept[0], scale=alt.Scale(zero=False, nice=False, padding=24), axis=axis)
        y = alt.Y("tokens:Q", title=title, scale=scale)
        lines = base.mark_line(strokeWidth=2.5).encode(x=x, y=y, color=colour)
        points = base.mark_point(filled=True, size=64, opacity=1).encode(x=x, y=y, color=colour)
        return finished_chart(alt.layer(lines, points), _WIDTH, _LINES_PIXELS)
    x, y = alt.X("tokens:Q", title=title, scale=scale), _runs_axis(documents)
    bars = base.mark_bar().encode(x=x, y=y, color=colour)
    text = base.mark_text(align="left", dx=5, fontSize=12, color=COLOURS["ink"]).encode(x=x, y=y, text="said:N")
    return finished_chart(alt.layer(bars, text), _WIDTH, height + 30)


def _runs_axis(documents: Sequence[Document]) -> Any:
    """A row for each run: what does not fit into one line is told in two."""
    alt = altair_module()
    axis = alt.Axis(labelLimit=_LABEL_PIXELS, labelExpr="split(datum.label, '\\n')", grid=False)
    return alt.Y("run:N", sort=[_row_name(run) for run in documents], title=None, axis=axis)


def _row_name(run: Document) -> str:
    return named(run).replace(" (", "\n(", 1)


def _endings_spec(documents: Sequence[Document], height: int) -> Spec:
    colours = {"within SLO": "kv", "finished late": "weights", "refused": "reserve", "gave up": "limit"}
    rows = []
    for run in documents:
        good = round((run["slo_fraction"] or 0) * run["requests"])
        counts = (good, run["finished"] - good, run["refused"], run["timed_out"])
        rows += [
            {"run": _row_name(run), "ending": name, "requests": count, "order": at}
            for at, (name, count) in enumerate(zip(colours, counts, strict=True))
        ]
    alt = altair_module()
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_bar()
        .encode(
            x=alt.X("requests:Q", title="requests"),
            y=_runs_axis(documents),
            order="order:Q",
            color=alt.Color(
                "ending:N",
                title=None,
                scale=alt.Scale(domain=list(colours), range=[COLOURS[role] for role in colours.values()]),
                legend=alt.Legend(orient="top", labelColor=COLOURS["faint"]),
            ),
        )
    )
    return finished_chart(chart, _WIDTH, height + 30)


def _title(documents: Sequence[Document]) -> str:
    scenarios = dict.fromkeys(str(run["scenario"]) for run in documents if "scenario" in run)
    return f"{_TITLE}: {', '.join(scenarios)}" if scenarios else _TITLE


def _swept_names(documents: Sequence[Document]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for run in documents for name in run.get("sweep", {})))


def _point(run: Document, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(str(run.get("sweep", {}).get(name, "")) for name in names)


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _fraction(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
