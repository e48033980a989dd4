"""Decides how the labelled corpus of snapshots is read: `tests/corpus`, its labels, and the command that is asked."""

import contextlib
import gzip
import io
import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvbudget.cli.main import main

CORPUS = Path(__file__).resolve().parents[1] / "corpus"
# Findings that say what moves or how it was read, and blame nobody: they may stand beside any verdict.
NOTES = ("arrivals_exceed_service", "pool_filling", "reporting_change")
MADE = ("vllm", "embedded", "gate", "derived", "renamed")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A pair of scrapes, or one, `seconds` apart. `made`: one of `MADE`. `arguments`: what the operator tells besides.

    `verdict`, `accept`, `also`, `needs` and `why` are the label, as `labels.toml` explains them.
    """

    name: str
    made: str
    engine: str
    seconds: float
    doing: str
    older: str | None
    newer: str
    arguments: tuple[str, ...]
    verdict: str
    accept: tuple[str, ...]
    also: tuple[str, ...]
    needs: tuple[str, ...]
    why: str

    def files(self, folder: Path) -> list[Path]:
        """Its scrapes as files in `folder`, the older first."""
        ends = (("older", self.older), ("newer", self.newer))
        paths = [(folder / f"{self.name}.{end}.prom", text) for end, text in ends if text is not None]
        for path, text in paths:
            path.write_text(text)
        return [path for path, _ in paths]


@dataclass(frozen=True, slots=True)
class Answer:
    """What `kvbudget diagnose` made of a snapshot."""

    snapshot: Snapshot
    verdict: str
    findings: tuple[str, ...]

    @property
    def right(self) -> bool:
        """By the label, or by what the snapshots cannot tell from it."""
        accepted = (self.snapshot.verdict, *self.snapshot.accept)
        return self.verdict in accepted and set(self.snapshot.needs) <= {self.verdict, *self.findings}

    @property
    def stray(self) -> tuple[str, ...]:
        """Findings beside the verdict that the label does not allow."""
        allowed = {self.snapshot.verdict, *self.snapshot.accept, *self.snapshot.also, *NOTES}
        return tuple(code for code in self.findings if code not in allowed)

    def line(self) -> str:
        """For people."""
        return (
            f"{self.snapshot.name} ({self.snapshot.made}): {self.verdict} {list(self.findings)}, "
            f"labelled {self.snapshot.verdict}: {self.snapshot.why}"
        )


def labels() -> dict[str, dict[str, Any]]:
    """By name."""
    return tomllib.loads((CORPUS / "labels.toml").read_text())


def snapshots() -> Iterator[Snapshot]:
    """All that is in the corpus; KeyError for one that nobody labelled."""
    labelled = labels()
    for index, folder in (("recorded.jsonl", "recorded"), ("derived.jsonl", "derived")):
        for row in map(json.loads, (CORPUS / index).read_text().splitlines()):
            label = labelled[row["id"]]
            scrape = CORPUS / folder / row["id"]
            yield Snapshot(
                name=row["id"], made=row["made"], engine=row.get("engine", "vllm"), seconds=row["seconds"],
                doing=row["doing"], older=None if row.get("single") else _text(scrape, "a"), newer=_text(scrape, "b"),
                arguments=tuple(row.get("arguments", ())), verdict=label["verdict"],
                accept=tuple(label.get("accept", ())), also=tuple(label.get("also", ())),
                needs=tuple(label.get("needs", ())), why=label["why"],
            )  # fmt: skip


def asked(snapshot: Snapshot, folder: Path) -> Answer:
    """What the command says to it."""
    words = ["diagnose", *map(str, snapshot.files(folder)), f"--window={snapshot.seconds}", "--json"]
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        code = main([*words, *snapshot.arguments])
    if code not in (0, 1):
        return Answer(snapshot, f"exit {code}", ())
    told = json.loads(written.getvalue())
    return Answer(snapshot, told["verdict"], tuple(finding["code"] for finding in told["findings"]))


def _text(scrape: Path, end: str) -> str:
    plain = scrape.with_name(f"{scrape.name}.{end}.prom")
    if plain.exists():
        return plain.read_text()
    return gzip.decompress(plain.with_name(f"{plain.name}.gz").read_bytes()).decode()
