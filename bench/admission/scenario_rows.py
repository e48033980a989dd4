"""Decides what one scenario comes to over all seeds: goodput of each contender, what `learned` preempts and tells."""

from typing import Any, NamedTuple

POLICIES = ("none", "worst-case", "trajectory", "learned", "oracle")
SWEEP = (
    *(f"max-num-queued-reqs={n}{mark}" for n in (24, 40, 64, 96, 128) for mark in ("", "+watermark=0.05")),
    *(f"max-num-queued-tokens={n}+watermark=0.05" for n in (5_000, 10_000, 20_000, 40_000)),
    "watermark=0.01",
    "watermark=0.05",
)
NEEDED_NO_GATE = 0.99  # the share of good answers from which on no gate was needed
Document = dict[str, Any]


class Mean(NamedTuple):
    """One policy in one scenario, over all seeds."""

    goodput: float  # tokens/s of good answers
    slo: float
    preempted: float  # of all requests
    refused: float
    ttft99_s: float
    pool_use: float


class Returned(NamedTuple):
    """Retry-After where clients come back: `known` refusals of which it is known what they should have been told."""

    returned: int
    at_once: float | None
    known: int
    told_to_hindsight: float | None  # median over seeds


def mean_of(documents: list[Document]) -> Mean:
    """Means over seeds."""

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    return Mean(
        mean([one["goodput_tokens_per_s"] for one in documents]),
        mean([one["slo_fraction"] for one in documents]),
        sum(one["preemptions"] for one in documents) / sum(one["requests"] for one in documents),
        mean([one["refused"] / one["requests"] for one in documents]),
        mean([one["ttft_s"]["p99"] or 0.0 for one in documents]),
        mean([one["pool_use_mean"] or 0.0 for one in documents]),
    )


def returned_of(documents: list[Document]) -> Returned:
    """What Retry-After was worth, over all seeds."""
    told = [one["retry_after"] for one in documents]
    returned = sum(one["returned"] for one in told)
    ratios = sorted(one["told_to_hindsight"] for one in told if one["told_to_hindsight"] is not None)
    return Returned(
        returned,
        sum(one["admitted_at_once"] for one in told) / returned if returned else None,
        sum(one["hindsight_known"] for one in told),
        ratios[len(ratios) // 2] if ratios else None,
    )


class Row:
    """One scenario with all its contenders, and with clients who return."""

    def __init__(self, load: str, documents: dict[str, list[Document]], with_returns: list[Document]) -> None:
        self.load = load
        self.means = {policy: mean_of(found) for policy, found in documents.items()}
        self.returns = returned_of(with_returns)
        sweep = [policy for policy in self.means if policy in SWEEP]
        self.best_flag = max(sweep, key=lambda policy: self.means[policy].goodput) if sweep else None

    def ratio(self, other: str | None, policy: str = "learned") -> float | None:
        """Goodput of `policy` over that of the other; None where one was not run."""
        if policy not in self.means or other not in self.means:
            return None
        return self.means[policy].goodput / max(1e-9, self.means[other].goodput)

    @property
    def preempted(self) -> float | None:
        """Share of requests; None where `learned` was not run."""
        return self.means["learned"].preempted if "learned" in self.means else None

    @property
    def no_gate_needed(self) -> bool:
        """Whether the bare engine served practically everybody well."""
        return "none" in self.means and self.means["none"].slo >= NEEDED_NO_GATE


def table(rows: list[Row]) -> list[str]:
    """Markdown."""
    lines = [
        "| scenario | none | worst-case | trajectory | **learned** | oracle | best flags | learned / oracle | "
        "learned / flags | learned / none | preempted | refused | TTFT p99 s | pool | returns: at once | "
        "told / hindsight |",
        "|---|" + "---|" * 15,
    ]
    for row in rows:
        goodputs = [f"{row.means[name].goodput:,.0f}" if name in row.means else "" for name in POLICIES]
        flags = f"{row.means[row.best_flag].goodput:,.0f} ({_short(row.best_flag)})" if row.best_flag else ""
        ratios = [_ratio(row.ratio(other)) for other in ("oracle", row.best_flag, "none")]
        ours = row.means.get("learned")
        rest = ["", "", "", ""]
        if ours is not None:
            rest = [f"{ours.preempted:.2%}", f"{ours.refused:.0%}", f"{ours.ttft99_s:.2f}", f"{ours.pool_use:.0%}"]
        returns = row.returns
        rest.append("" if returns.at_once is None else f"{returns.at_once:.2f} of {returns.returned}")
        rest.append("" if returns.told_to_hindsight is None else f"{returns.told_to_hindsight:.2f} ({returns.known})")
        lines.append("| " + " | ".join([row.load, *goodputs, flags, *ratios, *rest]) + " |")
    return lines


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _short(flags: str) -> str:
    return flags.replace("max-num-queued-", "").replace("watermark", "wm")
