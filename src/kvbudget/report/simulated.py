"""Decides what is said in words of runs of the simulator: what was simulated, and what speaks against a gate."""

from collections.abc import Callable, Sequence
from typing import Any

Document = dict[str, Any]

_CLEARLY = 0.99  # below this share of another's goodput, a policy did not help
_NOT_A_GATE = ("none", "oracle")
_MANY_REFUSED = 0.5
_NEVER = ("context_exceeded", "never_fits", "tenant_too_large", "too_many_sequences")
_OTHERS = "(others)"
_MOST_NAMED = 5


def simulated_lines(documents: Sequence[Document]) -> list[str]:
    """Load, engine and SLO in a line each, and the command. What differs between runs is told as `first ... last`.

    Nothing for documents that do not tell.
    """
    if not documents or not all("load" in run for run in documents):
        return []

    def said(write: Callable[[Document], Sequence[str]]) -> str:
        of_runs = [write(run) for run in documents]
        parts = []
        for values in zip(*of_runs, strict=True):
            several = list(dict.fromkeys(values))
            parts.append(values[0] if len(several) == 1 else f"{several[0]} ... {several[-1]}")
        return ", ".join(part for part in parts if part)

    lines = [f"load: {said(_load)}", f"engine: {said(_engine)}", f"SLO: {said(_slo)}"]
    return [*lines, f"command: {documents[0]['command']}"] if "command" in documents[0] else lines


def notes_on(documents: Sequence[Document]) -> list[str]:
    """Where a gate bought nothing or cost something, and what no table shows."""
    notes: list[str] = []
    for point, runs in _by_point(documents).items():
        where = f"at {point}: " if point else ""
        alone = [run for run in runs if run["policy"] == "none" or _is_engine_flag(run["policy"])]
        for run in runs:
            if run["policy"] in _NOT_A_GATE or run in alone:
                continue
            best = max(alone, key=lambda one: float(one["goodput_tokens_per_s"]), default=None)
            if best is not None and run["goodput_tokens_per_s"] < _CLEARLY * best["goodput_tokens_per_s"]:
                share = run["goodput_tokens_per_s"] / best["goodput_tokens_per_s"]
                notes.append(
                    f"{where}{run['policy']} does not help here: {share:.2f} of the goodput of {best['policy']}"
                )
    notes += _waiting_past_the_slo(documents)
    if any(run["stalled_answers"] for run in documents):
        stalled = ", ".join(f"{named(run)} {run['stalled_answers']:,}" for run in documents if run["stalled_answers"])
        notes.append(f"answers that stood still for longer than the SLO allows: {stalled}")
    for run in documents:
        retry = run["retry_after"]
        if retry["returned"]:
            notes.append(
                f"{named(run)}: of {retry['returned']:,} clients that came back at the told time, "
                f"{retry['share_at_once']:.0%} were let in at once"
            )
    return notes + _refused_or_too_long(documents) + _unused_settings(documents)


def named(run: Document) -> str:
    """The policy, and the point of a sweep."""
    point = _point_of(run)
    return f"{run['policy']} ({point})" if point else str(run["policy"])


def _load(run: Document) -> tuple[str, ...]:
    load = run["load"]
    return (
        load["source"],
        f"{load['requests']:,} requests in {load['seconds']:,.1f} s",
        f"{load['requests_per_s']:,.1f}/s" if load["requests_per_s"] else "",
        f"rate-scale {load['rate_scale']:g}",
        f"max_tokens {load['max_tokens']:,}" if load["max_tokens"] else "",
        f"seed {load['seed']}",
    )


def _engine(run: Document) -> tuple[str, ...]:
    engine, usable = run["engine"], run["engine"]["usable_blocks"]
    sizes = "/".join(dict.fromkeys(str(size) for size in engine["block_sizes"]))
    cost = ",".join(f"{name.removesuffix('_ns')}:{value}" for name, value in engine["step_cost_ns"].items())
    return (
        f"{engine['instances']} instances" if engine["instances"] > 1 else "",
        f"{usable:,} blocks of {sizes} tokens (num-blocks {engine['num_blocks']:,} with the null block)",
        f"up to {engine['max_model_len']:,} tokens a request",
        f"{engine['max_num_seqs']:,} requests at once",
        f"{engine['max_num_batched_tokens']:,} tokens a step",
        f"step-cost {cost}",
    )


def _slo(run: Document) -> tuple[str, ...]:
    slo, clients = run["slo"], run["clients"]
    patience = (
        "clients never give up" if clients["patience_s"] is None else f"they give up at {clients['patience_s']:g} s"
    )
    retries = f"up to {clients['retries']} retries" if clients["retries"] else "no retries"
    return f"first token within {slo['ttft_s']:g} s", f"gaps up to {slo['gap_s']:g} s", patience, retries


def _waiting_past_the_slo(documents: Sequence[Document]) -> list[str]:
    """A queue longer than anybody's patience makes a good gate look bad."""
    slow = [
        run
        for run in documents
        if "slo" in run
        and run["policy"] not in _NOT_A_GATE
        and run["gate"]["queue_s"] > run["slo"]["ttft_s"]
        and (run["wait_s"]["p99"] or 0) > run["slo"]["ttft_s"]
    ]
    if not slow:
        return []
    slo_s, queue_s = slow[0]["slo"]["ttft_s"], slow[0]["gate"]["queue_s"]
    return [
        f"{_some(slow)}: requests wait in the gate's queue for longer (p99 {slow[0]['wait_s']['p99']:.1f} s) than the "
        f"SLO allows for a first token ({slo_s:g} s), and count as lost; compare with --queue-seconds "
        f"{max(1, 0.8 * slo_s):.0f} instead of {queue_s:g}"
    ]


def _refused_or_too_long(documents: Sequence[Document]) -> list[str]:
    notes = []
    for reason in _NEVER:
        runs = [run for run in documents if run["refusals"].get(reason)]
        if runs:
            count = runs[0]["refusals"][reason]
            notes.append(f"{_some(runs)}: requests that can never be served with these limits ({reason}): {count:,}")
    many = [run for run in documents if run["refused"] > _MANY_REFUSED * run["requests"] > 0 and run["refusals"]]
    if many:
        run = many[0]
        reason = max(run["refusals"], key=run["refusals"].__getitem__)
        told = f"{run['refused']:,} of {run['requests']:,} requests were refused, most for {reason}"
        notes.append(f"{_some(many)}: {told}; is the pool that of your engine, and the load yours?")
    return notes


def _unused_settings(documents: Sequence[Document]) -> list[str]:
    """Tenants and classes with settings of which the load has no request."""
    notes = []
    for kind in ("tenants", "classes"):
        seen = {name for run in documents for name in run.get(kind, {})}
        written = dict.fromkeys(name for run in documents for name in run.get("gate", {}).get(kind, ()))
        missing = [name for name in written if name not in seen and name != "*"]
        if missing and _OTHERS not in seen:
            more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
            notes.append(
                f"--config: no request of the load is of [gate.{kind}.{missing[0]}]"
                if len(missing) == 1
                else f"--config: no request of the load is of the {kind} {', '.join(missing[:_MOST_NAMED])}{more}"
            )
    return notes


def _some(runs: Sequence[Document]) -> str:
    names = [named(run) for run in runs]
    more = f" and {len(names) - _MOST_NAMED} more runs" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _point_of(run: Document) -> str:
    return ", ".join(f"{name} {value}" for name, value in run.get("sweep", {}).items())


def _by_point(documents: Sequence[Document]) -> dict[str, list[Document]]:
    found: dict[str, list[Document]] = {}
    for run in documents:
        found.setdefault(_point_of(run), []).append(run)
    return found


def _is_engine_flag(policy: str) -> bool:
    """Nothing but flags of the engine."""
    return all("=" in word or word == "none" for word in policy.split("+"))
