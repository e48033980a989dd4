"""Decides whether requests wait for something else than room: a scheduler that stands still, or a constraint."""

from kvbudget.diagnose.finding import Action, Cost, Finding, Severity, Sure
from kvbudget.diagnose.symptoms import Symptoms

# Gauges read 0 for about 18 s after a cold start and trail by 3 to 6 s (vllm#49538).
_SURELY_S = 60
_COLD_S = 20
_MOSTLY = 0.5


def stuck(s: Symptoms) -> Finding | None:
    """Somebody waits, nothing is computed, and neither pool nor limit is in the way (vllm#45414, #45388, #53130)."""
    sure = _stands_still(s)
    if sure is None:
        return None
    last = s.last
    label = ""
    if last.deferred is not None and last.for_room:
        label = " (the engine calls that waiting for capacity; with nothing running that label means nothing)"
    window = f" for {s.window_s:,.0f} s" if s.window_s else f" at {len(s.looks)} looks"
    return Finding(
        code="stuck",
        severity=Severity.CRITICAL,
        message=f"the scheduler is stuck: {last.running or 0:,} run and {last.waiting:,} wait{window}, and no token was"
        f" computed{label}; neither the pool nor a budget is full, and /health may still answer 200",
        evidence=s.evidence(
            deferred_requests=last.deferred,
            computed_tokens=s.progress,
            generation_tokens=s.grew("generation_tokens"),
        ),
        sure=sure,
        refuted_by="tokens computed, or requests running, a minute later: then it was a cold start or a late gauge",
        actions=(
            Action(
                "abort the oldest waiting request (close its connection); if nothing moves, restart this instance",
                Cost.FREE,
                "running rises above 0 within seconds",
            ),
            Action(
                "send traffic to another instance meanwhile; the gate does so by itself after five such looks",
                Cost.FREE,
                "requests are served elsewhere",
            ),
            Action(
                "alert on running = 0 and waiting > 0 for 60 s, and pin the engine version once one is free of it",
                Cost.FREE,
                "minutes instead of an hour until somebody knows; /health does not tell",
            ),
        ),
    )


def _stands_still(s: Symptoms) -> Sure | None:
    last = s.last
    if not s.several or not last.waiting or s.happened("preemptions"):
        return None
    generated = s.grew("generation_tokens")
    produced = s.progress if generated is None else generated + (s.finished or 0)
    if produced:
        return None
    if s.always(lambda look: look.running == 0 and bool(look.waiting)):
        if last.for_room == 0:
            return None  # all of them wait for something of their own: deferred() says so
        if s.window_s is not None and s.window_s < _COLD_S:
            return Sure("medium", f"{s.window_s:.0f} s only: gauges may be late, or the engine may have just started")
        long = s.window_s is not None and s.window_s >= _SURELY_S
        told = "and its counters tell that nothing came out" if produced == 0 else "no counter of tokens is told"
        return Sure("high" if produced == 0 or long else "medium", f"nobody runs at {len(s.looks)} looks, {told}")
    if s.progress or generated is None:
        return None
    if s.max_num_seqs is not None and last.deferred and (last.running or 0) + last.deferred >= s.max_num_seqs:
        return Sure("medium", "running and deferred take every place together, and nothing is computed (vllm#53130)")
    if last.usage is None or s.by_reason("rejected"):
        return None
    still = s.still and not s.waiting_rise and s.usage_rise == 0 and bool(last.for_room)
    if still and s.window_s is not None and s.window_s >= _SURELY_S:
        return Sure("medium", "every gauge and every counter stands still, with requests in every place")
    return None


def deferred(s: Symptoms) -> Finding | None:
    """Those that wait do so for a LoRA slot, a KV transfer or a grammar, not for room."""
    last = s.last
    if not last.deferred or not last.waiting or last.deferred < _MOSTLY * last.waiting:
        return None
    if last.deferred == 1 and not (s.several and s.always(lambda look: bool(look.deferred))):
        return None
    share = last.deferred / last.waiting
    return Finding(
        code="deferred",
        severity=Severity.WARNING,
        message=f"{last.deferred:,} of the {last.waiting:,} that wait are deferred: they wait for a LoRA slot, a KV"
        " transfer or a grammar, not for room; more memory or more replicas would not help",
        evidence=s.evidence(deferred_requests=last.deferred, waiting_for_room_requests=last.for_room),
        sure=Sure("high" if s.several and share > 0.9 else "medium", "by the engine's own count of why they wait"),
        refuted_by="num_requests_waiting_by_reason{reason=deferred} at 0 while the queue stays",
        actions=(
            Action(
                "LoRA: raise --max-loras to the adapters that are asked for together (lora_requests_info names them),"
                " or send each adapter's requests to an instance of its own",
                Cost.FREE,
                "deferred falls to 0; each slot costs a little memory, so plan again",
            ),
            Action(
                "KV transfer: look at the prefill side and at the connector; they wait for blocks that are on the way",
                Cost.FREE,
                "deferred follows the transfer time",
            ),
            Action(
                "structured output: compile grammars ahead, or repeat the same schema: its first use waits",
                Cost.FREE,
                "deferred is above 0 for new schemas alone",
            ),
        ),
    )
