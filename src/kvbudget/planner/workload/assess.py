"""Decides which parts of a workload's answer can be given, and puts them together: the entry of `plan --trace`.

Ceilings and chances always; sharing where the trace has hashes; stability where a rate and a speed are known; splits
where a speed is. A speed that is not given is estimated by a roofline for cards that are known, on its slow side.
"""

from typing import NamedTuple

from kvbudget.errors import BadValueError
from kvbudget.planner.advice.roofline import decode_step_s, prefill_s
from kvbudget.planner.request import Plan
from kvbudget.planner.workload.margin import NO_MARGIN, Margin
from kvbudget.planner.workload.mix import Workload, WorkloadPlan, within, workload_of
from kvbudget.planner.workload.sharing import sharing_of
from kvbudget.planner.workload.splits import splits_of
from kvbudget.planner.workload.stability import Service, stability_of

_LARGEST_RATE = 1e9


class Speed(NamedTuple):
    """What is known of arrivals and speed; None: not given. Rates of one engine, not of all replicas."""

    arrivals_per_s: float | None = None
    seconds_per_token: float | None = None
    prefill_tokens_per_s: float | None = None


NOTHING_GIVEN = Speed()


def assess(plan: Plan, workload: Workload, margin: Margin = NO_MARGIN, speed: Speed = NOTHING_GIVEN) -> WorkloadPlan:
    """The whole answer, for "workload" of the document. Raises BadValueError for rates that are none, and for a
    workload of which the engine would serve nothing."""
    for flag, value in (
        ("--arrival-rate", speed.arrivals_per_s),
        ("--seconds-per-token", speed.seconds_per_token),
        ("--prefill-tokens-per-s", speed.prefill_tokens_per_s),
    ):
        if value is not None and not 0 < value <= _LARGEST_RATE:
            raise BadValueError(f"{flag}: {value} is out of range", fix=f"{flag} is a number above 0")
    pool, layout, seqs = plan.pool, plan.stage.layout, plan.settings.max_num_seqs
    kept = margin.of(pool.usable_blocks)
    usable = max(0, pool.usable_blocks - kept)
    found = workload_of(plan, workload, kept, plan.request.target_concurrency)
    service = _service(plan, found, speed)
    if workload.hash_ids:
        found = found._replace(
            sharing=sharing_of(layout, workload.requests, workload.hash_ids, workload.hash_tokens, found.fits_95)
        )
    if service is None:
        return found
    served = [at for at, (prompt, _) in enumerate(workload.requests) if prompt < pool.max_model_len]
    requests = within(workload.requests, pool.max_model_len)
    rate, source = speed.arrivals_per_s, "given"
    if rate is None:
        rate, source = workload.arrivals_per_s * len(requests) / len(workload.requests), "of the trace"
    if rate:
        found = found._replace(
            stability=stability_of(
                layout,
                requests,
                service,
                usable_blocks=usable,
                max_num_seqs=seqs,
                arrivals_per_s=rate,
                arrivals_source=source,
                arrivals_s=[workload.arrivals_s[at] for at in served] if workload.arrivals_s else (),
            )
        )
    return found._replace(
        splits=splits_of(
            layout,
            requests,
            service,
            usable_blocks=usable,
            concurrency=found.fits_95,
            max_model_len=pool.max_model_len,
            max_num_seqs=seqs,
        )
    )


def _service(plan: Plan, found: WorkloadPlan, speed: Speed) -> Service | None:
    step, prefill = speed.seconds_per_token, speed.prefill_tokens_per_s
    source = "given" if step is not None and prefill is not None else "estimated"
    if step is None:
        estimate = decode_step_s(plan, max(1, found.fits_95), max(1, found.mean.tokens))
        step = estimate.high if estimate else None
    if prefill is None:
        prompt = max(1, round(found.mean_prompt))
        alone = prefill_s(plan, prompt)
        prefill = prompt / alone.high if alone else None
    return Service(step, prefill, source) if step is not None and prefill is not None else None
