"""Replays field reports, figure by figure: what people saw in their logs against what the planner says.

    python scripts/check_cases.py                 # one line a report; exit 1 when one is wrong or cannot be replayed yet
    python scripts/check_cases.py --figures       # every compared figure
    python scripts/check_cases.py --estimates     # pool from GPU and flags alone against receipts (fit_overheads.py)

The reports are not part of this repository: KVBUDGET_CASES names their file, or a folder with planner.json,
diagnose.json and gate.json (default ../shared/cases); without it there is nothing to do. Reports of kind "gate" are
proved by the tests that docs/gate-cases.md names: one without a row there is wrong. Reports of kind "diagnose" are judged by `kvbudget diagnose`'s rules,
and with them the pairs of scrapes in metrics/ beside their file: one line each, right or wrong. Verdicts: exact (to the printed digit), within print (the given figure has two
decimals, and the observed one lies between what its ends give), explained (what is missing in the log is named, and
what can be computed agrees), not yet, WRONG.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from cases import diagnoses, others, vllm_kinds, vllm_pools, vllm_starts
from cases.replay import ROOT, Case, Outcome, holds

from kvbudget.errors import InputError, UnsupportedError

DEFAULT = ROOT.parent / "shared" / "cases"
NAMES = ("planner.json", "diagnose.json", "gate.json")
GATE_CASES = ROOT / "docs" / "gate-cases.md"
FIT = ROOT / "scripts" / "fit_overheads.py"
REPLAYS = vllm_pools.REPLAYS | vllm_kinds.REPLAYS | vllm_starts.REPLAYS | others.REPLAYS
BAD = ("WRONG", "not yet")


def main() -> int:
    """0 when every report is replayed and none is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", action="store_true", help="one line a figure, not a report")
    parser.add_argument("--estimates", action="store_true", help="the estimated pool against receipts")
    parser.add_argument("--only", metavar="ID", help="one report")
    args = parser.parse_args()
    if args.estimates:
        return estimates()
    given = Path(os.environ.get("KVBUDGET_CASES") or DEFAULT)
    wrong = 0
    for path in [given / name for name in NAMES] if given.is_dir() else [given]:
        if not path.exists():
            print(f"{path} is not there: nothing to check (KVBUDGET_CASES names another file)")
            continue
        cases = [case for case in json.loads(path.read_text()) if args.only in (None, case["id"])]
        diagnosed = [case for case in cases if case.get("kind") == "diagnose"]
        gated = [case for case in cases if case.get("kind") == "gate"]
        wrong += check_rows(gated)
        if planned := [case for case in cases if case not in diagnosed and case not in gated]:
            wrong += check_plans(planned, args)
        if diagnosed:
            wrong += check_diagnoses(diagnosed, path.parent / "metrics" if args.only is None else Path())
    return 1 if wrong else 0


def check_plans(cases: list[Case], args: argparse.Namespace) -> int:
    """Prints what the planner says of each; how many are wrong or cannot be replayed."""
    outcomes = [(case, replay(case)) for case in cases]
    for case, outcome in outcomes:
        print(line(case, outcome))
        if args.figures:
            for check in outcome.checks:
                print(f"        {check.what}: {check.predicted}, observed {check.observed:,} ({check.verdict})")
    counts = Counter(outcome.verdict for _, outcome in outcomes)
    print(f"{len(cases)} reports: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))
    return sum(counts[verdict] for verdict in BAD)


def check_diagnoses(cases: list[Case], folder: Path) -> int:
    """Prints what is found in each; how many are wrong."""
    lines, wrong = diagnoses.table(cases, folder)
    print("\n".join(lines))
    print(f"{len(lines)} diagnoses: {len(lines) - wrong} right, {wrong} wrong")
    return wrong


def check_rows(cases: list[Case]) -> int:
    """Prints where each report of the gate is proved; how many have no row."""
    page = GATE_CASES.read_text()
    missing = [case for case in cases if f"| {case['id']} |" not in page]
    for case in cases:
        print(
            f"{case['id']:<5} "
            + ("WRONG: no row in" if case in missing else "see the tests in")
            + " docs/gate-cases.md"
        )
    return len(missing)


def replay(case: Case) -> Outcome:
    """The outcome of one report; a refusal of the planner is one too."""
    function = REPLAYS.get(case["id"])
    if function is None:
        return Outcome((), not_yet="no replay is written for this report")
    try:
        return function(case)
    except UnsupportedError as missing:
        return Outcome((), not_yet=str(missing).splitlines()[0])
    except InputError as refusal:
        return Outcome((holds(f"the planner refuses: {str(refusal).splitlines()[0]}", False),))
    except Exception as crash:
        return Outcome((holds(f"the planner crashes: {type(crash).__name__} {crash}", False),))


def line(case: Case, outcome: Outcome) -> str:
    """id, engine, predicted, observed, verdict, and why."""
    shown = next((check for check in outcome.checks if check.verdict == "WRONG"), None) or next(
        iter(outcome.checks), None
    )
    figures = f"{shown.what} {shown.predicted}, observed {shown.observed:,}" if shown else "-"
    engine = f"{case['engine']} {case['engine_version'] or ''}".strip()
    why = outcome.not_yet or outcome.explanation or outcome.note
    return f"{case['id']:<5} {engine:<26.26} {outcome.verdict:<12} {figures}" + (f"  [{why}]" if why else "")


def estimates() -> int:
    """Another script's work: it holds the receipts and the fitted constants."""
    if not FIT.exists():
        print(f"{FIT.name} is not there: estimates are not checked")
        return 1
    return subprocess.run([sys.executable, FIT, "--check"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
