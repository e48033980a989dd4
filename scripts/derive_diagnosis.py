"""Writes the snapshots of `tests/corpus/derived`: states of engines that do not run here, and recorded ones renamed.

    python scripts/derive_diagnosis.py

What the engines tell stands in `diagnosis_signatures.py`. What is wrong with each is not said there but in
`tests/corpus/labels.toml`.
"""

import gzip
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from diagnosis_signatures import FAMILIES, Values

CORPUS = Path(__file__).resolve().parents[1] / "tests" / "corpus"


# --- what a real engine told, as others would see it ------------------------------------------------------------------


def of_recorded() -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    """(the line, texts by end) of recorded snapshots under other names, in another order, or as ranks of one server."""
    renamed: tuple[tuple[str, str, str, Callable[[str], str]], ...] = (
        (
            "storm-underscores",
            "vllm.small.storm",
            "colons rewritten to underscores by a relay",
            lambda text: text.replace("vllm:", "vllm_"),
        ),
        ("storm-2025-names", "vllm.small.storm", "under the names that vLLM had until 2025-11", _names_of_2025),
        ("seqs-2025-names", "vllm.seqs.full", "under the names that vLLM had until 2025-11", _names_of_2025),
        (
            "storm-federated",
            "vllm.small.storm",
            "federated: no TYPE lines, labels in reverse and those of the scrape job before them",
            _federated,
        ),
        (
            "moderate-federated",
            "vllm.small.moderate",
            "federated: no TYPE lines, labels in reverse and those of the scrape job before them",
            _federated,
        ),
        (
            "rejecting-openmetrics",
            "vllm.queue-limit.rejecting",
            "as OpenMetrics: families without _total, # EOF",
            _open_metrics,
        ),
    )
    for name, of, doing, change in renamed:
        yield _line(name, of, doing), {end: change(_recorded(of, end)) for end in "ab"}
    yield (
        {**_line("one-scrape-storm", "vllm.small.storm", "one scrape alone"), "single": True},
        {"b": _recorded("vllm.small.storm", "b")},
    )
    for name, of, flag in (
        ("four-of-four-told", "vllm.seqs.four-of-four", "--max-num-seqs=4"),
        ("half-kept-free-told", "vllm.watermark.half-kept-free", "--max-num-seqs=64"),
    ):
        told = _line(name, of, f"the same, and the operator tells {flag}, which vLLM does not export")
        yield {**told, "arguments": [flag]}, {end: _recorded(of, end) for end in "ab"}
    for name, first, second, doing in (
        (
            "ranks-storm-and-moderate",
            "vllm.small.storm",
            "vllm.small.moderate",
            "two data-parallel engines: one in a storm, one at ease",
        ),
        (
            "ranks-both-moderate",
            "vllm.small.moderate",
            "vllm.small.quiet-after-storm",
            "two data-parallel engines, both at ease",
        ),
        (
            "ranks-both-stormy",
            "vllm.small.storm",
            "vllm.small-again.storm-unshared",
            "two data-parallel engines, both in a storm",
        ),
    ):
        yield (
            _line(name, first, f"{doing} ({second})"),
            {end: _merged(_recorded(first, end), _recorded(second, end)) for end in "ab"},
        )


def _line(name: str, of: str, doing: str) -> dict[str, Any]:
    seconds = next(
        row["seconds"]
        for row in map(json.loads, (CORPUS / "recorded.jsonl").read_text().splitlines())
        if row["id"] == of
    )
    return {"id": name, "made": "renamed", "engine": "vllm", "seconds": seconds, "doing": doing, "after": of}


def _recorded(name: str, end: str) -> str:
    return gzip.decompress((CORPUS / "recorded" / f"{name}.{end}.prom.gz").read_bytes()).decode()


def _names_of_2025(text: str) -> str:
    gone = (
        "vllm:num_requests_waiting_by_reason",
        "vllm:admission_rejections",
        "vllm:prompt_tokens_by_source",
        "vllm:prompt_tokens_cached",
    )
    lines = [line for line in text.splitlines() if not line.removeprefix("# TYPE ").startswith(gone)]
    text = "".join(f"{line}\n" for line in lines)
    for name in ("cache_usage_perc", "prefix_cache_queries", "prefix_cache_hits"):
        text = text.replace(f"vllm:kv_{name}" if name.startswith("cache") else f"vllm:{name}", f"vllm:gpu_{name}")
    return re.sub(r',kv_cache_(size_tokens|max_concurrency)="[^"]*"', "", text)


def _federated(text: str) -> str:
    lines = []
    for line in text.splitlines():
        name, _, rest = line.partition("{")
        if line.startswith("#") or not rest:
            continue
        labels, _, value = rest.rpartition("} ")
        pairs = re.findall(r'(\w+="(?:[^"\\]|\\.)*")', labels)
        told = ",".join(['instance="10.1.0.7:8000"', 'job="llm"', *reversed(pairs)])
        lines.append(f"{name}{{{told}}} {value} 1764500000000")
    return "".join(f"{line}\n" for line in lines)


def _open_metrics(text: str) -> str:
    return re.sub(r"^# TYPE (\S+)_total counter$", r"# TYPE \1 counter", text, flags=re.MULTILINE) + "# EOF\n"


def _merged(first: str, second: str) -> str:
    blocks = [re.split(r"^(?=# TYPE )", text, flags=re.MULTILINE) for text in (first, second)]
    others = {block.partition("\n")[0]: block.splitlines()[1:] for block in blocks[1]}
    merged = ""
    for block in blocks[0]:
        ours = [
            line.replace('engine="0"', 'engine="1"')
            for line in others.get(block.partition("\n")[0], ())
            if 'engine="0"' in line
        ]
        merged += block + "".join(f"{line}\n" for line in ours)
    return merged


def main() -> int:
    """Write every pair and the lines about them."""
    folder = CORPUS / "derived"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.prom*"):
        old.unlink()
    rows: list[dict[str, Any]] = []
    for pair in (pair for family in FAMILIES for pair in family()):
        for end, own in (("a", pair.older), ("b", pair.newer)):
            (folder / f"{pair.name}.{end}.prom").write_text(exposition(dict(pair.both) | dict(own)))
        rows.append(
            {
                "id": pair.name,
                "made": "derived",
                "engine": pair.engine,
                "seconds": pair.seconds,
                "doing": pair.doing,
                "after": pair.after,
            }
        )
    for row, texts in of_recorded():
        rows.append(row)
        for end, text in texts.items():
            (folder / f"{row['id']}.{end}.prom.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    (CORPUS / "derived.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{len(rows)} pairs in {folder}")
    return 0


def exposition(values: Values) -> str:
    """Prometheus text: a TYPE line before each family, samples of a family together."""
    families: dict[str, list[str]] = {}
    for name, value in values.items():
        bare = name.partition("{")[0]
        family = bare
        for end in ("_bucket", "_sum", "_count"):
            if bare.endswith(end) and f"{bare.removesuffix(end)}_count" in {
                other.partition("{")[0] for other in values
            }:
                family = bare.removesuffix(end)
        families.setdefault(family, []).append(
            f"{name.removesuffix('{}')} {value:g}" if value < 1e6 else f"{name} {value!r}"
        )
    text = ""
    for family, lines in families.items():
        kind = "counter" if family.endswith("_total") and len(lines[0].split("_bucket")) == 1 else "gauge"
        kind = "histogram" if any("_bucket{" in line for line in lines) else kind
        text += f"# TYPE {family} {kind}\n" + "".join(f"{line}\n" for line in lines)
    return text


if __name__ == "__main__":
    sys.exit(main())
