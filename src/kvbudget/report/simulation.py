"""Decides how runs of the simulator are told: a table, what it says against the gate, and charts."""

from collections.abc import Sequence
from typing import Any

from kvbudget.report.charts import COLOURS, Spec, altair_module, finished_chart, svg_of
from kvbudget.report.html import html_sections
from kvbudget.report.markdown import markdown_sections
from kvbudget.report.section import Section

Document = dict[str, Any]

_TITLE = "Simulated admission"
_GOODPUT, _ENDINGS = "goodput", "endings"
_WIDTH, _ROW_PIXELS, _LABEL_PIXELS = 980, 34, 440
_CLEARLY = 0.99  # below this share of another's goodput, a policy did not help
_NOT_A_GATE = ("none", "oracle")
_LEGEND = (
    "ended: finished / refused / left by themselves; goodput: output tokens per second of answers within the SLO; "
    "SLO: share of all requests; ratio: of the clairvoyant's goodput; TTFT: median / p99, gap: p99, seconds; "
    "preempt: preemptions; redone, lost: of all computed tokens, those computed again, and those for clients who left; "
    "pool: mean use"
)


def runs_section(documents: Sequence[Document]) -> Section:
    """A row for each run, and notes."""
    swept = _swept_names(documents)
    header = (*swept, "policy", "ended", "goodput", "SLO", "ratio", "TTFT", "gap", "preempt", "redone", "lost", "pool")
    rows = tuple((*_point(document, swept), *_cells(document)) for document in documents)
    return Section("Runs", (_LEGEND,), header, rows, tuple(notes_on(documents)), _GOODPUT)


def notes_on(documents: Sequence[Document]) -> list[str]:
    """Where a gate bought nothing or cost something, and what no table shows."""
    notes: list[str] = []
    for point, runs in _by_point(documents).items():
        where = f"at {point}: " if point else ""
        alone = [run for run in runs if run["policy"] == "none" or _is_engine_flag(run["policy"])]
        for run in runs:
            if run["policy"] in _NOT_A_GATE or run in alone:
                continue
            best = max(alone, key=lambda one: float(one["goodput_tokens_per_s"]), default=None)
            if best is not None and run["goodput_tokens_per_s"] < _CLEARLY * best["goodput_tokens_per_s"]:
                share = run["goodput_tokens_per_s"] / best["goodput_tokens_per_s"]
                notes.append(
                    f"{where}{run['policy']} does not help here: {share:.2f} of the goodput of {best['policy']}"
                )
    if any(run["stalled_answers"] for run in documents):
        stalled = ", ".join(f"{_named(run)} {run['stalled_answers']:,}" for run in documents if run["stalled_answers"])
        notes.append(f"answers that stood still for longer than the SLO allows: {stalled}")
    for run in documents:
        retry = run["retry_after"]
        if retry["returned"]:
            notes.append(
                f"{_named(run)}: of {retry['returned']:,} clients that came back at the told time, "
                f"{retry['share_at_once']:.0%} were let in at once"
            )
    return notes


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
    sections = [
        runs_section(documents),
        Section("Endings", header=("run", "refusals by reason", "tries"), rows=_refusals(documents), chart=_ENDINGS),
    ]
    tenants = [
        (_named(run), name, f"{part['requests']:,}", f"{part['finished']:,}", f"{part['goodput_tokens_per_s']:,.0f}",
         _fraction(part["slo_fraction"]), _number(part["ttft_s"]["p50"]), _number(part["ttft_s"]["p99"]))
        for run in documents
        for name, part in run.get("tenants", {}).items()
    ]  # fmt: skip
    if tenants:
        header = ("run", "tenant", "requests", "finished", "goodput tok/s", "within SLO", "TTFT p50 s", "TTFT p99 s")
        sections.append(Section("Tenants", header=header, rows=tuple(tenants)))
    sections.append(
        Section(
            "How to read it",
            (
                "Within the SLO is an answer whose first token came in time and whose later gaps were short enough. A "
                "client that left is loss: what was computed for it is wasted.",
                "The clairvoyant is the same gate, told every true output length. Times come from a linear model of an "
                "engine step, an assumption: they compare policies, not machines.",
            ),
        )
    )
    return sections


def _cells(run: Document) -> tuple[str, ...]:
    scheduled = run["scheduled_tokens"]
    return (
        run["policy"],
        f"{run['finished']}/{run['refused']}/{run['timed_out']}",
        f"{run['goodput_tokens_per_s']:,.0f}",
        _fraction(run["slo_fraction"]),
        "-" if run["oracle_ratio"] is None else f"{run['oracle_ratio']:.2f}",
        f"{_number(run['ttft_s']['p50'])}/{_number(run['ttft_s']['p99'], 1)}",
        _number(run["gap_s"]["p99"]),
        f"{run['preemptions']:,}",
        f"{run['recomputed_tokens'] / scheduled:.1%}" if scheduled else "-",
        f"{run['wasted_tokens'] / scheduled:.1%}" if scheduled else "-",
        "-" if run["pool_use_mean"] is None else f"{run['pool_use_mean']:.0%}",
    )


def _refusals(documents: Sequence[Document]) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (
            _named(run),
            ", ".join(f"{name} {count:,}" for name, count in run["refusals"].items()) or "-",
            f"{run['tries']:,}",
        )
        for run in documents
    )


def _goodput_spec(documents: Sequence[Document], height: int) -> Spec:
    rows = [
        {"run": _named(run), "tokens": run["goodput_tokens_per_s"], "said": f"{run['goodput_tokens_per_s']:,.0f}"}
        for run in documents
    ]
    alt = altair_module()
    base = alt.Chart(alt.Data(values=rows))
    y = alt.Y(
        "run:N", sort=[row["run"] for row in rows], title=None, axis=alt.Axis(labelLimit=_LABEL_PIXELS, grid=False)
    )
    most = max((row["tokens"] for row in rows), default=0) or 1
    x = alt.X(
        "tokens:Q",
        title="output tokens per second within the SLO",
        scale=alt.Scale(domain=[0, most * 1.12], nice=False),
    )
    bars = base.mark_bar(color=COLOURS["kv"]).encode(x=x, y=y)
    text = base.mark_text(align="left", dx=5, fontSize=12, color=COLOURS["ink"]).encode(x=x, y=y, text="said:N")
    return finished_chart(alt.layer(bars, text), _WIDTH, height)


def _runs_axis(documents: Sequence[Document]) -> Any:
    alt = altair_module()
    axis = alt.Axis(labelLimit=_LABEL_PIXELS, grid=False)
    return alt.Y("run:N", sort=[_named(run) for run in documents], title=None, axis=axis)


def _endings_spec(documents: Sequence[Document], height: int) -> Spec:
    colours = {"within SLO": "kv", "finished late": "weights", "refused": "reserve", "left": "limit"}
    rows = []
    for run in documents:
        good = round((run["slo_fraction"] or 0) * run["requests"])
        counts = (good, run["finished"] - good, run["refused"], run["timed_out"])
        rows += [
            {"run": _named(run), "ending": name, "requests": count, "order": at}
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


def _named(run: Document) -> str:
    point = ", ".join(f"{name} {value}" for name, value in run.get("sweep", {}).items())
    return f"{run['policy']} ({point})" if point else str(run["policy"])


def _by_point(documents: Sequence[Document]) -> dict[str, list[Document]]:
    found: dict[str, list[Document]] = {}
    for run in documents:
        point = ", ".join(f"{name} {value}" for name, value in run.get("sweep", {}).items())
        found.setdefault(point, []).append(run)
    return found


def _is_engine_flag(policy: str) -> bool:
    """Nothing but flags of the engine."""
    return all("=" in word or word == "none" for word in policy.split("+"))


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _fraction(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
