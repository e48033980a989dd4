"""Decides how a report looks as one HTML file: it loads nothing, runs no script, is light or dark, and prints."""

from collections.abc import Mapping, Sequence
from html import escape

from kvbudget.planner.request import Finding, Plan
from kvbudget.report.charts import COLOURS, curve_spec, memory_spec, svg_of
from kvbudget.report.contents import CURVE_CHART, MEMORY_CHART, Fact, report_of
from kvbudget.report.section import Section

_CHART_WIDTH = 980
_MEMORY_HEIGHT = 300
_CURVE_HEIGHT = 360
_LIGHT = {"page": "#f6f8fa", "card": "#ffffff", "good": "#0b7a4b", "bad": "#b42318", "warn": "#9a6700", **COLOURS}
_DARK = {
    "page": "#10151b", "card": "#182029", "good": "#4ade9a", "bad": "#ff8a7a", "warn": "#f0b429",
    "ink": "#e6ecf2", "faint": "#9aa8b6", "grid": "#2a3541", "axis": "#465464", "reserve": "#3a4653",
    "weights": "#6f9bd1", "activation": "#8fb0d8", "cuda_graphs": "#b8a6d6", "non_torch": "#d9a0b0", "kv": "#2cc5b0",
    "limit": "#fb8b5a",
}  # fmt: skip


def html_report(plan: Plan, extras: Sequence[Section] = ()) -> str:
    """The whole document. Raises UnsupportedError when the chart packages are missing."""
    report = report_of(plan, extras)
    verdict = report.verdict
    charts = {
        MEMORY_CHART: _figure(
            svg_of(memory_spec(plan, width=_CHART_WIDTH, height=_MEMORY_HEIGHT)),
            "Memory of one GPU: each part begins where the one before it ends.",
        ),
        CURVE_CHART: _figure(
            svg_of(curve_spec(plan, width=_CHART_WIDTH, height=_CURVE_HEIGHT)),
            "Requests at once against their length, both on logarithmic scales.",
        ),
    }
    title = f"KV cache plan: {report.title}"
    tone = "good" if verdict.good else "bad"
    body = [
        "<header>",
        "<p class=kicker>KV cache plan</p>",
        f"<h1>{escape(report.title)}</h1>",
        f"<p class=place>{escape(report.place)}</p>",
        f'<p class="verdict {tone}"><strong>{verdict.word}</strong> <span>{escape(verdict.sentence)}</span></p>',
        f"<dl class=facts>{''.join(map(_fact, report.facts))}</dl>",
        "</header>",
        *(_section(section, charts.get(section.chart, "")) for section in report.opening),
        _findings(report.findings),
        *(_section(section, "") for section in report.closing),
    ]
    return html_page(title, body)


def html_sections(title: str, kicker: str, sections: Sequence[Section], charts: Mapping[str, tuple[str, str]]) -> str:
    """A page of a title and sections. `charts`: name in a section -> (SVG, what it shows)."""
    figures = {name: _figure(svg, label) for name, (svg, label) in charts.items()}
    body = ["<header>", f"<p class=kicker>{escape(kicker)}</p>", f"<h1>{escape(title)}</h1>", "</header>"]
    body += [_section(section, figures.get(section.chart, "")) for section in sections]
    return html_page(title, body)


def html_page(title: str, body: Sequence[str]) -> str:
    """The whole document around `body`, which is markup."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{_css()}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _fact(fact: Fact) -> str:
    return f"<div><dt>{escape(fact.label)}</dt><dd>{escape(fact.value)}<small>{escape(fact.note)}</small></dd></div>"


def _section(section: Section, figure: str) -> str:
    parts = [f"<section><h2>{escape(section.title)}</h2>"]
    parts += [f"<p>{escape(paragraph)}</p>" for paragraph in section.paragraphs]
    parts.append(figure)
    if section.header:
        parts.append(_table(section))
    if section.lines:
        kind = "ol" if section.numbered else "ul"
        parts.append(f"<{kind}>" + "".join(f"<li>{escape(line)}</li>" for line in section.lines) + f"</{kind}>")
    parts.append("</section>")
    return "\n".join(part for part in parts if part)


def _table(section: Section) -> str:
    numeric = [section.is_numeric(column) for column in range(len(section.header))]

    def cells(row: Sequence[str]) -> str:
        first = f'<th scope="row">{escape(row[0])}</th>' if row else ""
        rest = (
            f"<td{' class=n' if n else ''}>{escape(cell)}</td>" for cell, n in zip(row[1:], numeric[1:], strict=True)
        )
        return first + "".join(rest)

    head = "".join(
        f'<th scope="col"{" class=n" if n else ""}>{escape(name)}</th>'
        for name, n in zip(section.header, numeric, strict=True)
    )
    body = "".join(f"<tr>{cells(row)}</tr>\n" for row in section.rows)
    label = escape(section.title)
    return (
        f'<div class=scroll role="region" aria-label="{label}" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}</tbody></table></div>"
    )


def _findings(findings: Sequence[Finding]) -> str:
    if not findings:
        return "<section><h2>Findings</h2><p>None.</p></section>"
    cards = "".join(
        f'<li class="{"bad" if finding.severity == "error" else "warn"}"><strong>{escape(finding.severity)}</strong> '
        f"<code>{escape(finding.code)}</code><p>{escape(finding.message)}</p>"
        f"<p class=fix>{escape(finding.fix)}</p></li>"
        for finding in findings
    )
    return f"<section><h2>Findings</h2><ul class=findings>{cards}</ul></section>"


def _figure(svg: str, label: str) -> str:
    """A picture inside the page: it scales with it, and names no namespace, which HTML does not need."""
    head, _, rest = svg.partition(">")
    box = head[head.index("viewBox=") :].split('"')[1]
    return f'<figure><svg role="img" aria-label="{escape(label)}" viewBox="{box}">{rest}</figure>'


def _css() -> str:
    """Vega writes colours as attributes; a style wins over them, so dark needs no second picture."""
    restyled = "".join(
        f'svg [fill="{light}"]{{fill:var(--{role.replace("_", "-")})}}'
        f'svg [stroke="{light}"]{{stroke:var(--{role.replace("_", "-")})}}'
        for role, light in COLOURS.items()
    )
    return (
        f":root{{{_variables(_LIGHT)}}}@media screen and (prefers-color-scheme:dark){{:root{{{_variables(_DARK)}}}}}"
        + restyled
        + _STYLE
    )


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{role.replace('_', '-')}:{colour};" for role, colour in colours.items())


_STYLE = """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.55 system-ui,-apple-system,"Segoe UI","Liberation Sans",Arial,sans-serif}
main{max-width:1080px;margin:0 auto;padding:40px 24px 64px}
.kicker{margin:0;color:var(--faint);font-size:13px;letter-spacing:.08em;text-transform:uppercase}
h1{margin:2px 0 0;font-size:34px;line-height:1.2;overflow-wrap:anywhere}
h2{margin:0 0 10px;font-size:19px}
.place{margin:4px 0 20px;color:var(--faint)}
.verdict{margin:0 0 20px;padding:14px 18px;background:var(--card);border:1px solid var(--grid);border-left:6px solid;
border-radius:8px;overflow-wrap:anywhere}
.verdict strong{margin-right:8px;white-space:nowrap}.verdict span{color:var(--ink)}
.good{border-left-color:var(--good)}.good strong{color:var(--good)}
.bad{border-left-color:var(--bad)}.bad strong{color:var(--bad)}
.warn{border-left-color:var(--warn)}.warn strong{color:var(--warn)}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(180px,1fr));gap:12px;margin:0 0 24px}
.facts div{background:var(--card);border:1px solid var(--grid);border-radius:8px;padding:12px 14px}
dt{color:var(--faint);font-size:13px}
dd{margin:0;font-size:23px;font-weight:600;font-variant-numeric:tabular-nums}
dd small{display:block;color:var(--faint);font-size:12.5px;font-weight:400;line-height:1.4}
section{background:var(--card);border:1px solid var(--grid);border-radius:10px;padding:20px 22px;margin:0 0 18px}
section p{margin:0 0 12px;max-width:78ch}
figure{margin:0 0 14px;overflow-x:auto}svg{display:block;width:100%;min-width:820px;height:auto}
.scroll{overflow-x:auto}
table{width:100%;border-collapse:collapse;font-size:14px}
th,td{padding:7px 10px;text-align:left;vertical-align:top;border-bottom:1px solid var(--grid)}
thead th{color:var(--faint);font-weight:500;border-bottom-color:var(--axis)}
tbody th{font-weight:500}tbody tr:last-child>*{border-bottom:0}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
ol,ul{margin:0;padding-left:1.6em}li{margin:3px 0}
.findings{list-style:none;padding:0;margin:0}
.findings li{padding:12px 16px;margin:0 0 10px;border:1px solid var(--grid);border-left:5px solid;border-radius:8px}
.findings p{margin:6px 0 0;overflow-wrap:anywhere}.fix::before{content:"→ "}
.findings .bad{border-left-color:var(--bad)}.findings .warn{border-left-color:var(--warn)}
code{font:13px ui-monospace,"Liberation Mono",Menlo,Consolas,monospace}
@media(max-width:600px){main{padding:20px 12px 40px}section{padding:14px}h1{font-size:26px}}
@media print{svg{min-width:0}body{background:#fff;font-size:11px}main{max-width:none;padding:0}table{font-size:10px}
section,.facts div,.verdict{break-inside:avoid;border-color:#ccc}section{padding:10px 0;border-width:1px 0 0;
border-radius:0}.scroll{overflow:visible}
section:has(tbody tr:nth-child(14)),section:has(li:nth-child(14)){break-inside:auto}tr,li{break-inside:avoid}}
"""
