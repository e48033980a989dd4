"""Writes docs/reference.md from the code itself: flags, findings, metrics, refusals, error codes, headers.

`python scripts/make_reference.py` rewrites the file; with `--check` it only says whether the file is current (exit 1 if
not). A test runs the check.
"""

import argparse
import ast
import functools
import sys
from pathlib import Path

from reference_texts import (
    ADMIN_PATHS,
    BACKENDS,
    CHARGES,
    CLAMPED,
    ERRORS,
    EXPLANATIONS,
    FINDINGS,
    FORMS,
    HEADERS,
    OUTCOMES,
    REASONS,
    REFUSALS,
    SPEAKERS,
    WHYS,
)

from kvbudget.cli.main import COMMANDS, parser_of
from kvbudget.cli.output import ERROR_SCHEMA
from kvbudget.diagnose.verdict import CODES
from kvbudget.edge.control.admin import GAUGES
from kvbudget.edge.control.demand import FORECAST_GAUGES
from kvbudget.edge.discovery.discovery import DISCOVERY_METRICS
from kvbudget.edge.extproc.service import COUNTERS as EXTPROC_COUNTERS
from kvbudget.edge.extproc.service import GAUGES as EXTPROC_GAUGES
from kvbudget.edge.http.messages import DATA_PLANE_CODES
from kvbudget.edge.metrics import GateMetrics
from kvbudget.edge.openai.errors import ERROR_TYPES
from kvbudget.edge.request.answers import ANSWERS
from kvbudget.edge.surfaces.table import ROWS
from kvbudget.edge.web.answering import ADMIN_CODES
from kvbudget.edge.workers.expositions import WORKER_METRICS
from kvbudget.gate.waiting.why import Why
from kvbudget.planner.budget.schema import BACKEND

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "reference.md"
HEAD = """# Reference

Made by `scripts/make_reference.py` from the code; a test fails when it is not current.
"""


def reference() -> str:
    """The whole page."""
    sections = [
        HEAD,
        commands(),
        findings(),
        diagnoses(),
        apis(),
        HEADERS,
        backends(),
        refusals(),
        error_codes(),
        admin_paths(),
        metrics(),
    ]
    return "\n".join(section.strip() + "\n" for section in sections)


def commands() -> str:
    """Flags of every command."""
    lines = ["## Commands", "", "Exit codes: 0 good, 1 finding, 2 usage or unsupported, 130 interrupted.", ""]
    for name, summary in COMMANDS.items():
        lines += [
            f"### kvbudget {name}",
            "",
            f"{summary[0].upper()}{summary[1:]}.",
            "",
            "| flag | meaning |",
            "|---|---|",
        ]
        later = []
        for action in parser_of(name)._actions:
            if isinstance(action, argparse._HelpAction):
                continue
            if action.help == argparse.SUPPRESS:
                later.append(f"`{action.option_strings[0]}`")
                continue
            shown = ", ".join(f"`{option}`" for option in action.option_strings) or f"`{action.metavar or action.dest}`"
            lines.append(f"| {shown} | {_cell(action.help or '')} |")
        lines.append("")
        if later:
            lines += [f"Known, and refused by name until built: {', '.join(later)}.", ""]
    return "\n".join(lines)


@functools.cache
def calls() -> list[tuple[str, ast.Call]]:
    """(module, call) of everything that is said in the source by a code."""
    package = ROOT / "src" / "kvbudget"
    return [
        (str(path.relative_to(package)), node)
        for path in sorted(package.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in SPEAKERS
        and len(node.args) > 1
        and isinstance(node.args[0], ast.Constant)
    ]


def spoken() -> dict[tuple[str, str], list[str]]:
    """(speaker, code) -> the modules that say it."""
    found: dict[tuple[str, str], list[str]] = {}
    for module, call in calls():
        modules = found.setdefault((call.func.id, call.args[0].value), [])
        if module not in modules:
            modules.append(module)
    return found


def severity_of(code: str) -> str:
    """Refusals of an engine are errors; of our own findings the source says it, in the second argument."""
    for _, call in calls():
        if call.func.id == "Finding" and call.args[0].value == code:
            return str(call.args[1].value)
    return "error"


def findings() -> str:
    """What the planner says: findings of plan, reasons of check, explanations of receipt, errors. KeyError: add it to
    scripts/reference_texts.py."""
    said = spoken()
    lines = [
        "## Findings of kvbudget plan",
        "",
        "Error: exit 1. Fixes and engines: [Plan a model](how-to/plan.md).",
        "",
    ]
    lines += ["| code | severity | meaning | said by |", "|---|---|---|---|"]
    codes = dict.fromkeys(code for speaker, code in sorted(said) if speaker in ("Refusal", "Shared", "Finding"))
    for code in codes:
        modules = dict.fromkeys(
            module for who in ("Refusal", "Shared", "Finding") for module in said.get((who, code), ())
        )
        where = ", ".join(f"`{module}`" for module in modules)
        lines.append(f"| `{code}` | {severity_of(code)} | {FINDINGS[code]} | {where} |")
    for title, speaker, texts in (
        ("Reasons of kvbudget check", "Reason", REASONS),
        ("Explanations of kvbudget receipt", "Explanation", EXPLANATIONS),
    ):
        unknown = {code for who, code in said if who == speaker} - set(texts)
        if unknown:
            raise KeyError(f"{speaker} without a sentence here: {sorted(unknown)}")
        lines += ["", f"## {title}", "", "| code | meaning |", "|---|---|"]
        lines += [f"| `{code}` | {text} |" for code, text in texts.items()]
    lines += [
        "",
        "## Errors of every command",
        "",
        "`kvbudget COMMAND: CODE: what; what to do next` on stderr, exit 2. With `--json` stdout is one document as well,",
        f'`{{"schema": "{ERROR_SCHEMA}", "error": {{"code", "message", "fix"}}}}`, unless the result was written before.',
        "",
    ]
    lines += ["| code | meaning |", "|---|---|"]
    lines += [f"| `{code}` | {text} |" for code, text in ERRORS.items()]
    return "\n".join(lines)


def diagnoses() -> str:
    """What an engine is found to have, in order of cause."""
    lines = ["## Findings of kvbudget diagnose", ""]
    lines += [
        "In order of cause; label `code` of `kvbudget_finding`. What is no verdict leaves an engine healthy. Figures and"
    ]
    lines += ["actions: [Diagnose](how-to/diagnose.md).", "", "| code | verdict | meaning |", "|---|---|---|"]
    for name, code in CODES.items():
        lines.append(f"| `{name}` | {'yes' if code.verdict else 'no'} | {code.means} |")
    return "\n".join(lines)


def apis() -> str:
    """Every API that is charged."""
    lines = [
        "## APIs",
        "",
        "More on each: [APIs](how-to/apis.md). Everything else under `/v1` passes without a charge, as do",
    ]
    lines += ["`/tokenize`, `/detokenize` and `/version`; `/v1/messages/count_tokens` is answered by the gate.", ""]
    lines += ["| path | charged | errors in the form of |", "|---|---|---|"]
    for surface, row in ROWS.items():
        paths = ", ".join(f"`{path}`" for path in row.paths)
        lines.append(f"| {paths} | {CHARGES[surface]} | {FORMS[row.errors]} |")
    return "\n".join(lines)


def refusals() -> str:
    """Refusals with their HTTP answers, and outcomes."""
    lines = [
        "## Refusals of the gate",
        "",
        "Label `reason` of `kvbudget_refusals_total`.",
        "",
        "| reason | status | code | meaning |",
    ]
    lines.append("|---|---|---|---|")
    for refusal, answer in ANSWERS.items():
        lines.append(f"| `{refusal}` | {answer.status} | `{answer.code}` | {REFUSALS[refusal]} |")
    lines += ["", "`--overload-status` replaces 429.", "", *CLAMPED, "", "## Outcomes", ""]
    lines += ["Label `outcome` of `kvbudget_requests_total`.", "", "| outcome | meaning |", "|---|---|"]
    lines += [f"| `{outcome}` | {text} |" for outcome, text in OUTCOMES.items()]
    lines += ["", "## Why a request waits", ""]
    lines += ["`why` in `/v1/state` and `/api/live`: the word of the gate's last look at it.", ""]
    lines += ["| why | meaning |", "|---|---|", *[f"| `{why}` | {WHYS[why]} |" for why in Why]]
    return "\n".join(lines)


def admin_paths() -> str:
    """What the admin port answers."""
    lines = ["## Paths of the admin port", "", "| path | what |", "|---|---|"]
    for paths, text in ADMIN_PATHS.items():
        lines.append(f"| {', '.join(f'`{path}`' for path in paths.split(', '))} | {text} |")
    return "\n".join(lines)


def backends() -> str:
    """The keys of [[backend]]."""
    lines = ["## Instances: `[[backend]]` of kvbudget.toml", ""]
    lines += [
        "One table for each engine. What is not said there holds as `[gate]` says for all. `SIGHUP` takes over all",
        "",
    ]
    lines[-2] += " but `url` and `name`, and tables that came or went."
    lines += ["| key | value | meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | {kind.words} | {BACKENDS[name]} |" for name, kind in BACKEND.items()]
    lines += ["", "Admin API: `GET /v1/instances`, `POST /v1/instances/NAME/drain` and `/resume` with"]
    lines += ["`content-type: application/json`."]
    return "\n".join(lines)


def error_codes() -> str:
    """String codes of error bodies."""
    lines = ["## Error codes", "", 'Bodies are `{"error": {"message", "type", "param", "code"}}`; on `/v1/messages`']
    lines += ['`{"type": "error", "error": {"type", "message"}, "request_id"}` with Anthropic\'s types, on `/generate`']
    lines += ['`{"error", "error_type"}`. Statuses and headers are the same in all of them.', ""]
    lines += ["| code | type |", "|---|---|"]
    lines += [f"| `{code}` | `{kind}` |" for code, kind in sorted(ERROR_TYPES.items())]
    lines += [
        "",
        "From the HTTP layer, before a request is whole (the connection is closed after the answer); in the form",
    ]
    lines += ["of its path's API where the path has come, else in OpenAI's:", ""]
    lines += ["| status | code |", "|---|---|"]
    lines += [
        f"| {status} | `{code}` |" for code, status in sorted(DATA_PLANE_CODES.items(), key=lambda item: item[::-1])
    ]
    lines += [
        "",
        "On the admin port, in OpenAI's form, with `fix` (what to do) beside `message` where there is something:",
        "",
    ]
    lines += ["| code | type |", "|---|---|"]
    lines += [f"| `{code}` | `{kind}` |" for code, kind in sorted(ADMIN_CODES.items())]
    return "\n".join(lines)


def metrics() -> str:
    """Everything on /metrics."""
    lines = ["## Metrics", "", "On the admin port, `/metrics`.", "", "| name | type | meaning |", "|---|---|---|"]
    for name, text in {**GAUGES, **FORECAST_GAUGES}.items():
        lines.append(f"| `{name}` | gauge | {text} |")
    for name, text in DISCOVERY_METRICS.items():
        counts = name.endswith("_failures")
        lines.append(f"| `{name}{'_total' if counts else ''}` | {'counter' if counts else 'gauge'} | {text} |")
    for family in GateMetrics().collect():
        suffix = "_total" if family.type == "counter" else ""
        lines.append(f"| `{family.name}{suffix}` | {family.type} | {family.documentation} |")
    for name, text in EXTPROC_GAUGES.items():
        lines.append(f"| `{name}` | gauge | {text} Of `kvbudget extproc`. |")
    for name, text in EXTPROC_COUNTERS.items():
        lines.append(f"| `{name}_total` | counter | {text} Of `kvbudget extproc`. |")
    for name, text in WORKER_METRICS.items():
        lines.append(f"| `{name}` | {'counter' if name.endswith('_total') else 'gauge'} | {text} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def main() -> int:
    """Write or check."""
    text = reference()
    if "--check" in sys.argv[1:]:
        current = TARGET.exists() and TARGET.read_text() == text
        if not current:
            print("docs/reference.md is not current; run: python scripts/make_reference.py", file=sys.stderr)
        return 0 if current else 1
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
