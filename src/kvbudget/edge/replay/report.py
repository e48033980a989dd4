"""Decides what a replay comes to: the figures of the simulator's report, and the generator's own honesty."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvbudget.edge.replay.outcome import Ending, Outcome

SCHEMA = "kvbudget.replay/1"
# A generator that sends later than this (p99) did not offer the load that the trace describes.
LATE_S = 0.05


@dataclass(frozen=True, slots=True)
class Slo:
    """What a good answer is: first token within `ttft_s`, every later gap within `gap_s`; None does not judge."""

    ttft_s: float | None = None
    gap_s: float | None = None


@dataclass(frozen=True, slots=True)
class EngineReadings:
    """What the engine's metrics said over the run; None where it said nothing."""

    preemptions: int | None = None
    pool_use_mean: float | None = None


def build_report(
    outcomes: Sequence[Outcome], *, slo: Slo, elapsed_s: float, readings: EngineReadings, notes: Sequence[str] = ()
) -> dict[str, object]:
    """The report as plain JSON values. Seconds are floats; percentiles are None when nothing was measured.

    `elapsed_s` runs from the first arrival to the last answer. Goodput counts the output tokens of requests that met
    the SLO (of all that finished, without one). `slo_fraction` is the share of all requests that arrived.
    """
    endings = Counter(outcome.ending for outcome in outcomes)
    good = [outcome for outcome in outcomes if meets(outcome, slo)]
    firsts = sorted(outcome.ttft_s for outcome in outcomes if outcome.ttft_s is not None)
    gaps = sorted(gap for outcome in outcomes for gap in outcome.gaps_s)
    late = sorted(outcome.late_s for outcome in outcomes if outcome.ending is not Ending.NOT_SENT)
    totals = sorted(outcome.total_s for outcome in outcomes if outcome.ending is Ending.FINISHED)
    counted = [one for one in outcomes if one.usage_prompt_tokens is not None]
    return {
        "schema": SCHEMA,
        "requests": len(outcomes),
        "finished": endings[Ending.FINISHED],
        "refused": endings[Ending.REFUSED],
        "timed_out": endings[Ending.TIMED_OUT],
        "failed": endings[Ending.FAILED],
        "not_sent": endings[Ending.NOT_SENT],
        "interrupted": endings[Ending.INTERRUPTED],
        "preemptions": readings.preemptions,
        "recomputed_tokens": None,  # no engine exports it
        "goodput_tokens_per_s": sum(one.output_tokens for one in good) / elapsed_s if elapsed_s > 0 else 0.0,
        "slo_fraction": len(good) / len(outcomes) if outcomes else None,
        "ttft_s": {"p50": percentile(firsts, 0.5), "p99": percentile(firsts, 0.99)},
        "gap_s": {"p99": percentile(gaps, 0.99)},
        "total_s": {"p50": percentile(totals, 0.5), "p99": percentile(totals, 0.99)},
        "pool_use_mean": readings.pool_use_mean,
        "oracle_ratio": None,  # needs a clairvoyant run: the simulator has one
        "elapsed_s": elapsed_s,
        "statuses": _counts(str(one.status) for one in outcomes if one.status is not None),
        "errors": _counts(one.error for one in outcomes if one.error),
        "retries": sum(one.tries - 1 for one in outcomes if one.ending is not Ending.NOT_SENT),
        "prompt_tokens": {
            "sent": sum(one.prompt_tokens for one in outcomes if one.ending is not Ending.NOT_SENT),
            "compared": len(counted),
            "differing": sum(one.usage_prompt_tokens != one.prompt_tokens for one in counted),
        },
        "generator": {
            "late_s": {"p50": percentile(late, 0.5), "p99": percentile(late, 0.99)},
            "kept_up": (not late or (percentile(late, 0.99) or 0.0) <= LATE_S) and not endings[Ending.NOT_SENT],
        },
        "notes": [*notes, *_own_notes(endings, late)],
    }


def meets(outcome: Outcome, slo: Slo) -> bool:
    """Whether a finished request kept the SLO.

    A plain answer shows no first token; it is held to the time that the SLO grants a stream of its length.
    """
    if outcome.ending is not Ending.FINISHED:
        return False
    if not outcome.stream:
        if slo.ttft_s is None or slo.gap_s is None:
            return True
        return outcome.total_s <= slo.ttft_s + slo.gap_s * max(outcome.output_tokens - 1, 0)
    if slo.ttft_s is not None and (outcome.ttft_s is None or outcome.ttft_s > slo.ttft_s):
        return False
    return slo.gap_s is None or max(outcome.gaps_s, default=0.0) <= slo.gap_s


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Nearest rank of an ascending sequence; None when it is empty."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def _counts(words: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(words).items()))


def _own_notes(endings: Counter[Ending], late: Sequence[float]) -> list[str]:
    notes = []
    late_p99_s = percentile(late, 0.99) or 0.0
    if late_p99_s > LATE_S:
        notes.append(
            f"the generator could not keep up: 1 % of the requests left {late_p99_s:.3f} s or more after their time;"
            " give it a core of its own or lower --rate-scale"
        )
    if endings[Ending.NOT_SENT]:
        notes.append(
            f"requests that were not sent because --concurrency-limit was reached: {endings[Ending.NOT_SENT]};"
            " the load was lighter than the trace"
        )
    return notes
