"""Writes docs/reference.md from the code itself: flags, metrics, refusals, error codes, headers.

`python scripts/make_reference.py` rewrites the file; with `--check` it only says whether the file is current (exit 1 if
not). A test runs the check.
"""

import argparse
import sys
from pathlib import Path

from kvbudget.cli.main import COMMANDS, parser_of
from kvbudget.edge.admin import GAUGES
from kvbudget.edge.answers import ANSWERS
from kvbudget.edge.http.messages import DATA_PLANE_CODES
from kvbudget.edge.metrics import GateMetrics
from kvbudget.edge.openai.errors import ERROR_TYPES
from kvbudget.gate.refusals import Outcome, Refusal

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "reference.md"
HEAD = """# Reference

Made by `scripts/make_reference.py` from the code; a test fails when it is not current.
"""
# What each refusal means, for people; the test fails when one is missing.
REFUSALS = {
    Refusal.CONTEXT_EXCEEDED: "The prompt leaves no room for one token under the context cap. Shorten it.",
    Refusal.NEVER_FITS: "Prompt + max_tokens is more than the whole pool can hold. The message names the largest that fits.",
    Refusal.TOO_MANY_SEQUENCES: "n (times the prompts of a list) is more than the engine runs at once.",
    Refusal.BAD_REQUEST: "Body or headers cannot be understood, or ask for what the gate cannot account for. See error codes.",
    Refusal.POOL_FULL: "No room now, and queueing is switched off.",
    Refusal.QUEUE_FULL: "No room now, and the queue is at its bound of requests or tokens.",
    Refusal.DEADLINE: "No room came free before the deadline (`--queue-seconds` or `x-kvbudget-deadline-ms`).",
    Refusal.ENGINE_BUSY: "The engine itself refused it for overload (its 429 or 503), by limits of its own.",
    Refusal.DRAINING: "The gate shuts down.",
    Refusal.COUNT_FAILED: "The prompt could not be counted just now, and the upper bound of its tokens is too much to promise.",
    Refusal.NO_BACKEND: "The engine cannot be reached, or the size of its pool is not known yet.",
}
OUTCOMES = {
    Outcome.FINISHED: "The engine's answer was relayed to its end.",
    Outcome.REFUSED: "Refused at once; see refusals.",
    Outcome.EXPIRED: "Its deadline passed in the queue.",
    Outcome.WITHDRAWN: "The client left while it was counted or waited.",
    Outcome.CLIENT_GONE: "The client left after it was forwarded; the engine's connection was closed at once.",
    Outcome.UPSTREAM_FAILED: "The engine could not be reached or broke off.",
    Outcome.UPSTREAM_REFUSED: "The engine answered with an error, which was relayed.",
    Outcome.TIMED_OUT: "The engine kept silent for too long.",
    Outcome.SHUT_DOWN: "Cut off when the gate ended.",
}
HEADERS = """## Headers

| request header | meaning |
|---|---|
| `x-request-id` | kept if printable and at most 128 characters, else one is made; sent on to the engine and answered |
| `x-kvbudget-tenant` | whom to account the request to: 1 to 64 letters, digits, `.`, `_`, `-`; else one per API key (`key-` and a hash of the Authorization header), else `default` |
| `x-kvbudget-priority` | whole number from -100 to 100, smaller is more urgent (vLLM's sign); 0 if absent |
| `x-kvbudget-deadline-ms` | refuse it (429) if it cannot be forwarded within so many milliseconds |

| response header | meaning |
|---|---|
| `x-kvbudget-reserved-blocks` | blocks promised to this request at its worst moment |
| `x-kvbudget-queue-ms` | how long it waited for room |
| `x-kvbudget-prompt-tokens` | what was counted |
| `x-ratelimit-limit-tokens`, `-remaining-tokens`, `-reset-tokens` | the pool in tokens, what is not promised of it, and the time in which this request would give its part back |
| `retry-after`, `retry-after-ms` | on 429 and 503: when room is expected, 1 to 120 s, lengthened by up to a quarter at random |
| `x-should-retry` | `false` where the same request can never succeed |

Every other header passes both ways, hop-by-hop ones aside.
"""


def reference() -> str:
    """The whole page."""
    sections = [HEAD, commands(), HEADERS, refusals(), error_codes(), metrics()]
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


def refusals() -> str:
    """Refusals with their HTTP answers, and outcomes."""
    lines = [
        "## Refusals",
        "",
        "Label `reason` of `kvbudget_refusals_total`.",
        "",
        "| reason | status | code | meaning |",
    ]
    lines.append("|---|---|---|---|")
    for refusal, answer in ANSWERS.items():
        lines.append(f"| `{refusal}` | {answer.status} | `{answer.code}` | {REFUSALS[refusal]} |")
    lines += ["", "`--overload-status` replaces 429.", "", "## Outcomes", ""]
    lines += ["Label `outcome` of `kvbudget_requests_total`.", "", "| outcome | meaning |", "|---|---|"]
    lines += [f"| `{outcome}` | {text} |" for outcome, text in OUTCOMES.items()]
    return "\n".join(lines)


def error_codes() -> str:
    """String codes of error bodies."""
    lines = ["## Error codes", "", 'Bodies are `{"error": {"message", "type", "param", "code"}}`.', ""]
    lines += ["| code | type |", "|---|---|"]
    lines += [f"| `{code}` | `{kind}` |" for code, kind in sorted(ERROR_TYPES.items())]
    lines += ["", "From the HTTP layer, before a request is whole (the connection is closed after the answer):", ""]
    lines += ["| status | code |", "|---|---|"]
    lines += [
        f"| {status} | `{code}` |" for code, status in sorted(DATA_PLANE_CODES.items(), key=lambda item: item[::-1])
    ]
    return "\n".join(lines)


def metrics() -> str:
    """Everything on /metrics."""
    lines = ["## Metrics", "", "On the admin port, `/metrics`.", "", "| name | type | meaning |", "|---|---|---|"]
    for name, text in GAUGES.items():
        lines.append(f"| `{name}` | gauge | {text} |")
    for family in GateMetrics().collect():
        suffix = "_total" if family.type == "counter" else ""
        lines.append(f"| `{family.name}{suffix}` | {family.type} | {family.documentation} |")
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
