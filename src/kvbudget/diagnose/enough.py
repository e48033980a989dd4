"""Decides what is missing before anything may be said, and when nothing is wrong."""

from kvbudget.diagnose.actions import MAX_NUM_SEQS, SECOND_SCRAPE
from kvbudget.diagnose.finding import Action, Cost, Finding, Severity, Sure
from kvbudget.diagnose.symptoms import Symptoms, number
from kvbudget.engines.window import GateWindow

_QUEUE = 3  # fewer may be there for a moment
_WITHOUT_USAGE = {
    "llamacpp": "llama.cpp exports no figure of its cache since #13660: give /slots and /props, or its log, beside it",
    "tgi": "TGI exports no usage; tgi_batch_current_max_tokens and tgi_batch_max_total_tokens tell what is reserved",
    "sglang": "start SGLang with --enable-metrics, and scrape the server itself",
}
_NO_USAGE = "usage of the pool is not exported here: scrape the engine itself, not a router or a filtered copy"


def insufficient_data(s: Symptoms) -> Finding | None:
    """What keeps us from a verdict, and what to collect; None when there is enough."""
    last = s.last
    lacks, collect = [], []
    if last.usage is None:
        lacks.append("the use of the pool is not known")
        collect.append(_WITHOUT_USAGE.get(s.window.engine, _NO_USAGE))
    if last.running is None or last.waiting is None:
        lacks.append("how many run and wait is not known")
        collect.append("the gauges of running and waiting requests")
    if not s.several and (last.waiting or number(s.totals.preemptions)):
        lacks.append("one scrape cannot tell what happens now from what happened since the start")
        collect.append(SECOND_SCRAPE)
    elif (last.for_room or 0) >= _QUEUE:
        lacks.append(f"{last.for_room:,} wait for room, and nothing here says for what")
        if s.max_num_seqs is None:
            collect.append(MAX_NUM_SEQS)
        collect.append(SECOND_SCRAPE)
    if s.window.restarted and not lacks and not s.progress:
        lacks.append("the engine was restarted within the window, and has done nothing since")
        collect.append(SECOND_SCRAPE)
    if not lacks:
        return None
    return lacking(
        "; ".join(lacks),
        (*collect, *(missing for missing in s.window.missing if last.usage is None)),
        s.evidence(preemptions_since_start=number(s.totals.preemptions), finished_requests=s.finished),
        s.window.where,
    )


def lacking(why: str, collect: tuple[str, ...], evidence: dict[str, float | str | None], where: str = "") -> Finding:
    """The finding that says so."""
    unique = tuple(dict.fromkeys(collect))
    return Finding(
        code="insufficient_data",
        severity=Severity.WARNING,
        message=f"not enough is known for a verdict: {why}",
        evidence=evidence,
        sure=Sure("high", "it is missing"),
        refuted_by="the figures named under collect",
        actions=tuple(Action(f"collect {what}", Cost.FREE, "a verdict instead of a guess") for what in unique),
        where=(where,) if where else (),
        collect=unique,
    )


def healthy(s: Symptoms) -> Finding:
    """Nobody waits for room, nothing was preempted or refused."""
    last, preempted = s.last, s.grew("preemptions")
    words = f"nothing is wrong: {(last.usage or 0) * 100:.0f} % of the pool in use, {last.running or 0:,} running,"
    words += f" {last.waiting or 0:,} waiting"
    if preempted == 0:
        words += ", no preemption in the window"
        old = number(s.totals.preemptions)
        words += f" ({old:,.0f} since the start are old)" if old else ""
    why = f"{len(s.looks)} looks" if s.several else "one look: what counters did since the start says little of now"
    return Finding(
        code="healthy",
        severity=Severity.INFO,
        message=words,
        evidence=s.evidence(
            usage_high_share=s.usage_high,
            preemptions=preempted,
            preemptions_since_start=number(s.totals.preemptions),
            finished_requests=s.finished,
        ),
        sure=Sure("medium" if s.several else "low", why),
        refuted_by="a queue, a preemption or a refusal at a busier hour: watch it with --watch or kvbudget_finding",
        actions=(Action("nothing to change", Cost.FREE, "as now, as long as the load is as now"),),
        where=(s.window.where,) if s.window.where else (),
    )


def gate_healthy(gate: GateWindow) -> Finding:
    """Of a gate alone: it has room, or it does not tell its pool."""
    pool, promised, queue = number(gate.pool_blocks), number(gate.promised_blocks), number(gate.queue_requests)
    if pool is None or promised is None:
        return lacking(
            "the gate does not tell its pool",
            ("the gate's own /metrics on its admin port, or the engine's",),
            {"queue_requests": queue},
            gate.instance,
        )
    return Finding(
        code="healthy",
        severity=Severity.INFO,
        message=f"the gate has room: {promised:,.0f} of {pool:,.0f} blocks promised, {queue or 0:,.0f} requests wait",
        evidence={
            "pool_blocks": pool,
            "promised_blocks": promised,
            "held_blocks": number(gate.held_blocks),
            "queue_requests": queue,
            "window_s": number(gate.window_s),
        },
        sure=Sure("medium", "by the gate's own ledger"),
        refuted_by="a queue at the gate, or held blocks near the pool",
        actions=(Action("nothing to change", Cost.FREE, "as now, as long as the load is as now"),),
        where=(gate.instance,) if gate.instance else (),
    )
