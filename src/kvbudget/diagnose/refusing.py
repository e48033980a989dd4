"""Decides whether requests fail rather than wait: refused by the engine, or given up by clients."""

from kvbudget.diagnose.finding import Action, Cost, Finding, Severity, Sure
from kvbudget.diagnose.symptoms import Symptoms

_FAILED_SHARE = 0.02  # of what ended; vllm-doctor asks from 5 %
_ABORTED_SHARE, _ABORTED = 0.10, 5  # inference-sim#1121: a time-out of 300 s inflated throughput 45 times


def engine_rejecting(s: Symptoms) -> Finding | None:
    """The engine itself turned requests away within the window."""
    rejected, failed, finished = s.by_reason("rejected"), s.happened("failed"), s.finished or 0
    turned_away = sum(rejected.values())
    if not turned_away and (not failed or failed < _FAILED_SHARE * (finished + failed)):
        return None
    ended = finished + turned_away
    reasons = ", ".join(f"{reason or 'no reason told'} {count:,.0f}" for reason, count in sorted(rejected.items()))
    told = []
    if turned_away:
        told.append(f"turned {turned_away:,.0f} requests away ({reasons})")
    if failed:
        told.append(f"let {failed:,.0f} fail")
    return Finding(
        code="engine_rejecting",
        severity=Severity.CRITICAL,
        message=f"the engine {' and '.join(told)}, while {finished:,.0f} ended in the window",
        evidence=s.evidence(
            rejected_requests=turned_away,
            failed_requests=failed,
            finished_requests=finished,
            rejected_share=turned_away / ended if ended else None,
            reasons=reasons or None,
        ),
        sure=Sure("high", "by the engine's own counters, within the window"),
        refuted_by="counters that stand still over the next window",
        actions=(
            Action(
                "put the gate in front: it queues by blocks, and refuses with a Retry-After that is true",
                Cost.FREE,
                "admission_rejections stays still; refusals carry a reason and a time to come back",
            ),
            Action(
                "max_num_queued_reqs or max_num_queued_tokens: raise them if the wait would be bearable",
                Cost.FREE,
                "fewer are turned away, more wait: see queue time",
            ),
            Action(
                "validation errors: look at the reason; longer than max_model_len is the client's to change",
                Cost.FREE,
                "those with this reason end",
            ),
            Action("one more replica behind one gate", Cost.MONEY, "twice the requests are taken"),
        ),
    )


def client_timeouts(s: Symptoms) -> Finding | None:
    """Clients give up, so that what the engine computes is thrown away, and its tokens/s flatter it."""
    aborted, finished, vanished = s.happened("aborted"), s.finished or 0, s.vanished
    inferred = vanished > aborted
    given_up, ended = (vanished, finished + vanished) if inferred else (aborted, max(finished, aborted))
    if given_up < _ABORTED or given_up < _ABORTED_SHARE * ended:
        return None
    share = given_up / ended
    return Finding(
        code="client_timeouts",
        severity=Severity.WARNING,
        message=f"{given_up:,.0f} requests ({share:.0%}) were given up by their clients: tokens/s counts their tokens,"
        " and nobody read them; count finished requests alone",
        evidence=s.evidence(
            aborted_requests=given_up,
            finished_requests=finished,
            aborted_share=share,
            generation_tokens=s.grew("generation_tokens"),
        ),
        sure=Sure(
            "medium", "by the engine's count of aborts, which misses some (vLLM 0.32 counts not all disconnects)"
        ),
        refuted_by="aborts that users meant: a stop button, or hedged requests of a router",
        actions=(
            Action(
                "let the gate refuse early what cannot be served in the client's time (x-kvbudget-deadline-ms)",
                Cost.FREE,
                "aborts fall, requests that end rise; tokens/s may fall, and is true",
            ),
            Action("a longer time-out at the client, where waiting is bearable", Cost.FREE, "aborts fall, waits grow"),
        ),
    )


def arrivals_exceed_service(s: Symptoms) -> Finding | None:
    """The queue grows: more come than are served, and an open loop of clients does not slow down by itself."""
    last, rise = s.last, s.waiting_rise
    if not last.for_room or rise < max(5, 0.1 * last.for_room):
        return None
    rate = rise / s.window_s if s.window_s else None
    words = f"the queue grew by {rise:,} within the window, to {last.waiting:,}"
    words += f" ({rate:.2g} more come each second than are served)" if rate else ""
    return Finding(
        code="arrivals_exceed_service",
        severity=Severity.INFO,
        message=words + ": while that lasts, no queue is long enough, and every wait grows",
        evidence=s.evidence(queue_growth_requests=rise, queue_growth_requests_per_s=rate, finished_requests=s.finished),
        sure=Sure("medium" if len(s.looks) > 2 else "low", f"{len(s.looks)} looks; a burst looks the same"),
        refuted_by="a queue that falls again by itself",
        actions=(
            Action(
                "refuse early, with Retry-After (the gate: --queue-seconds, --queue-tokens)",
                Cost.FREE,
                "waits stay bounded; what is refused comes back later or elsewhere",
            ),
            Action("one more replica behind one gate", Cost.MONEY, "twice the rate is served"),
        ),
    )
