"""Decides whether the pool is what requests wait for: full, filling, one part of it full, or a fixed footprint."""

from kvbudget.diagnose.actions import PRESSURE, lower_concurrency
from kvbudget.diagnose.finding import Action, Cost, Finding, Severity, Sure
from kvbudget.diagnose.fullness import FULL, NEARLY, NEXT_DOES_NOT_FIT, is_fixed_footprint, is_full, is_runaway
from kvbudget.diagnose.symptoms import Symptoms, number

_RISE = 0.01
_EMPTY_PART = 0.5
_SEVERAL_ANSWERS = 1.5


def pool_full(s: Symptoms) -> Finding | None:
    """The blocks of the engine are used up."""
    sure = is_full(s)
    if sure is None or is_runaway(s):
        return None
    last, preempted = s.last, s.grew("preemptions")
    fits = _fits(s)
    what = "has no room for one more like those that run" if sure == NEXT_DOES_NOT_FIT else "is full"
    words = f"the KV pool {what}: {_percent(s.usage_high)} in use, {_told(last.running)} running"
    words += f", {_told(last.for_room)} waiting for room" if last.for_room else ", nobody waiting at the last look"
    if preempted:
        words += f", {preempted:,.0f} preemptions in the window (each computes its tokens again)"
    if s.finished == 0 and preempted and preempted >= (last.running or 1):
        words += "; nothing finished: this is a preemption storm, the load is far beyond the pool"
    evidence = s.evidence(
        usage_high_share=s.usage_high,
        waiting_for_room_requests=last.for_room,
        preemptions=preempted,
        recomputed_tokens=s.grew("recomputed_tokens"),
        fitting_requests=fits,
        held_per_request_tokens=s.held_tokens_each,
        pool_tokens=s.pool_tokens,
    )
    return Finding(
        code="pool_full",
        severity=Severity.CRITICAL,
        message=words,
        evidence=evidence,
        sure=sure,
        refuted_by="usage below 0.9 while the queue stays, or no preemption over the next minutes: then something else"
        " holds the queue (max_num_seqs, prefill)",
        actions=(lower_concurrency(fits), *_engine_s_own(s), *PRESSURE),
    )


def _engine_s_own(s: Symptoms) -> tuple[Action, ...]:
    if s.window.engine == "sglang" and s.happened("preemptions"):
        what = "SGLang: raise --schedule-conservativeness to 1.3 (its own guide, for frequent retraction)"
        return (Action(what, Cost.FREE, "retractions per minute fall towards 0; the queue waits instead"),)
    n = s.figure("n_mean")
    if n and n > _SEVERAL_ANSWERS:
        what = f"ask for fewer answers at once: requests have n = {n:.1f} on average, and each of them holds KV"
        return (Action(what, Cost.FREE, "KV per request falls in proportion to n"),)
    return ()


def _fits(s: Symptoms) -> int | None:
    if not s.last.usage or not s.last.running:
        return None
    return max(1, int(s.last.running * FULL / s.last.usage))


def pool_filling(s: Symptoms) -> Finding | None:
    """Nobody waits yet, and the pool goes full. No verdict: a pool near its top with nobody waiting is well used."""
    usage, rise = s.last.usage, s.usage_rise
    if usage is None or usage < NEARLY or rise < _RISE or s.last.for_room or is_full(s) is not None:
        return None
    seconds = None if s.window_s is None else (1 - usage) / (rise / s.window_s)
    soon = "" if seconds is None else f"; at this rate it is full in about {seconds:,.0f} s"
    how = "those that run grow" if s.pinned else "more are let in than end"
    return Finding(
        code="pool_filling",
        severity=Severity.INFO,
        message=f"the pool goes full: {_percent(usage)} in use, {rise * 100:.1f} points more than at the first look, as"
        f" {how}{soon}",
        evidence=s.evidence(usage_rise_share=rise, full_in_s=seconds),
        sure=Sure("medium" if len(s.looks) > 2 else "low", f"a straight line through {len(s.looks)} looks"),
        refuted_by="usage that stands still or falls at the next look, as requests end",
        actions=(lower_concurrency(_fits(s)), *PRESSURE),
    )


def sub_pool_full(s: Symptoms) -> Finding | None:
    """One part of the pool is full while another is nearly empty: the sum of both hides it."""
    parts = {kind: share for kind, value in s.window.last.usage_by_kind.items() if (share := number(value)) is not None}
    if len(parts) < 2:
        return None
    fullest, emptiest = max(parts, key=lambda kind: parts[kind]), min(parts, key=lambda kind: parts[kind])
    if parts[fullest] < FULL or parts[emptiest] > _EMPTY_PART:
        return None
    suffering = bool(s.last.for_room) or bool(s.happened("preemptions"))
    return Finding(
        code="sub_pool_full",
        severity=Severity.CRITICAL if suffering else Severity.WARNING,
        message=f"one part of the pool is full while another is empty: {fullest} {_percent(parts[fullest])},"
        f" {emptiest} {_percent(parts[emptiest])}",
        evidence=s.evidence(**{f"{kind}_usage_share": share for kind, share in parts.items()}),
        sure=Sure("high", "the engine tells the use of each part"),
        refuted_by=f"the {fullest} part falls below 0.9 while the queue stays",
        actions=(
            Action(
                f"give the {fullest} part more of the memory (SGLang: --swa-full-tokens-ratio,"
                " --mamba-full-memory-ratio; vLLM shares one pool and needs none)",
                Cost.FREE,
                f"{fullest} usage falls, {emptiest} rises; nothing else is needed as long as both are below 0.9",
            ),
            *PRESSURE,
        ),
    )


def fixed_footprint(s: Symptoms) -> Finding | None:
    """Small requests take a large share each, whatever their length."""
    if not is_fixed_footprint(s):
        return None
    each, held, prompt = s.share_each or 0, s.held_tokens_each or 0, s.prompt_mean or 0
    return Finding(
        code="fixed_footprint",
        severity=Severity.WARNING,
        message=f"each request holds {_percent(each)} of the pool ({held:,.0f} tokens' worth) while its prompt has"
        f" {prompt:,.0f} tokens: the footprint is fixed by block size and number of cache groups, not by length",
        evidence=s.evidence(
            per_request_share=each,
            held_per_request_tokens=held,
            prompt_mean_tokens=prompt,
            output_mean_tokens=s.output_mean,
            largest_block_tokens=number(s.window.limits.largest_block),
        ),
        sure=Sure("medium", "lengths are means; one running request may be longer than all that ended"),
        refuted_by="usage that grows with the tokens of a single request: then it is its length",
        actions=(
            Action(
                "change what the footprint comes from: a smaller --block-size, no speculative decoding, another"
                " attention backend; limits on length do nothing here",
                Cost.FREE,
                "share of the pool per request falls; kvbudget plan shows blocks_per_request for each group",
            ),
            Action("put replicas behind one gate", Cost.MONEY, "each holds as many such requests again"),
        ),
    )


def _percent(share: float | None) -> str:
    return "an unknown share" if share is None else f"{share * 100:.1f} %"


def _told(count: int | None) -> str:
    return "an unknown number" if count is None else f"{count:,}"
