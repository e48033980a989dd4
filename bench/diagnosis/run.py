"""Puts `kvbudget diagnose` beside vllm-doctor and inferpilot, on every snapshot of the corpus that has vLLM's names.

    .venv/bin/python bench/diagnosis/run.py                # a table by label, and the sums
    .venv/bin/python bench/diagnosis/run.py --each         # every snapshot with what each tool said
    .venv/bin/python bench/diagnosis/run.py --pairs DIR    # and the six public pairs: DIR/pool_full.a, .b, ...

The labels are our own (`tests/corpus/labels.toml`), said from what was done to the engine, not from what a rule says;
`peers.py` tells how the words of the other tools are put beside them. Right, half or wrong, as it says there. The tools
read vLLM's names only, so the snapshots of other engines and of our gate are left out here.
"""

import argparse
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import peers
from peers import Said

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import diagnosis_corpus as corpus  # noqa: E402 - from where the tests read it

TOOLS = ("kvbudget", "vllm-doctor", "inferpilot")
RIGHT, HALF, WRONG = "right", "half", "wrong"
# Six cases that are tried on diagnosing tools in public, by the name of their files: what each of them is.
PUBLIC = {
    "pool_full": ("pool_full", ()),
    "seqs_full": ("seqs_full", ()),
    "old_preempt_now_idle": ("healthy", ()),
    "deferred_lora": ("deferred", ()),
    "no_shared_prefix_short_prompts": ("prefix_cache_no_sharing", ("prefix_cache_below_block",)),
    "old_metric_name_only": ("pool_full", ()),
}
PUBLIC_S = 30.0


class Row(NamedTuple):
    """A snapshot, and how each tool did."""

    snapshot: corpus.Snapshot
    said: dict[str, Said]
    marks: dict[str, str]


def main() -> int:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--each", action="store_true", help="every snapshot, not only the sums")
    parser.add_argument("--pairs", type=Path, metavar="DIR", help="folder of the six public pairs")
    args = parser.parse_args()
    for peer in peers.PEERS:
        if reason := peers.install(peer):
            print(f"{peer.name} {peer.version} {reason}", file=sys.stderr)
            return 2
    chosen = [one for one in corpus.snapshots() if one.engine == "vllm" and one.made != "gate"]
    with tempfile.TemporaryDirectory() as folder:
        rows = compared(chosen, Path(folder))
        public = compared(list(public_pairs(args.pairs)), Path(folder)) if args.pairs else []
    if args.each:
        print("\n".join(each(rows + public)), end="\n\n")
    print("\n".join(table(rows)))
    if public:
        print("\nThe six public pairs:\n")
        print("\n".join(each(public)))
    return 0


def compared(chosen: Sequence[corpus.Snapshot], folder: Path) -> list[Row]:
    """Every tool on every snapshot."""
    rows = []
    with peers.served({one.name: one.newer for one in chosen}) as url:
        for one in chosen:
            files = one.files(folder)
            answer = corpus.asked(one, folder)
            said = {
                "kvbudget": Said(", ".join((answer.verdict, *answer.findings)), (answer.verdict,), answer.findings),
                "vllm-doctor": peers.ask_doctor(f"{url}/{one.name}/metrics", one.newer),
                "inferpilot": peers.ask_pilot(files[0] if len(files) > 1 else None, files[-1]),
            }
            rows.append(Row(one, said, {tool: mark(one, said[tool]) for tool in TOOLS}))
    return rows


def mark(snapshot: corpus.Snapshot, said: Said) -> str:
    """Beside the label; what the label accepts is right for every tool, what it needs is needed from each."""
    accepted = {snapshot.verdict, *snapshot.accept}
    told = {*said.first, *said.half}
    if accepted & set(said.first) and set(snapshot.needs) <= told:
        return RIGHT
    return HALF if accepted & told else WRONG


def public_pairs(folder: Path) -> Iterable[corpus.Snapshot]:
    """The six, where they are at hand."""
    for name, (verdict, accept) in PUBLIC.items():
        yield corpus.Snapshot(
            name=name, made="public", engine="vllm", seconds=PUBLIC_S, doing="", arguments=(), why="",
            older=(folder / f"{name}.a").read_text(), newer=(folder / f"{name}.b").read_text(),
            verdict=verdict, accept=accept, also=(), needs=(),
        )  # fmt: skip


def table(rows: Sequence[Row]) -> list[str]:
    """By label: right / half / wrong of each tool."""
    by_label: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_label[row.snapshot.verdict].append(row)
    lines = [f"| labelled | snapshots | {' | '.join(TOOLS)} |", "|---|---:|" + "---:|" * len(TOOLS)]
    for label, group in sorted(by_label.items(), key=lambda one: (-len(one[1]), one[0])):
        lines.append(f"| `{label}` | {len(group)} | {' | '.join(counts(group, tool) for tool in TOOLS)} |")
    lines.append(f"| all | {len(rows)} | {' | '.join(counts(rows, tool) for tool in TOOLS)} |")
    shares = [sum(row.marks[tool] == RIGHT for row in rows) / len(rows) for tool in TOOLS]
    lines.append(f"| right | | {' | '.join(f'{share:.0%}' for share in shares)} |")
    return lines


def counts(rows: Sequence[Row], tool: str) -> str:
    """Right / half / wrong."""
    seen = Counter(row.marks[tool] for row in rows)
    return f"{seen[RIGHT]} / {seen[HALF]} / {seen[WRONG]}"


def each(rows: Sequence[Row]) -> list[str]:
    """What each tool said of each snapshot."""
    lines = [f"| snapshot | labelled | {' | '.join(TOOLS)} |", "|---|---|" + "---|" * len(TOOLS)]
    for row in rows:
        told = [f"{row.marks[tool]}: {row.said[tool].words}" for tool in TOOLS]
        lines.append(f"| {row.snapshot.name} | `{row.snapshot.verdict}` | {' | '.join(told)} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
