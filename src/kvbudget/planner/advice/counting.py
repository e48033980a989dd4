"""Decides what a plan carries in numbers that advice compares: all its engines together, with the margin kept back."""

from typing import NamedTuple

from kvbudget.planner.advice.solve import starts
from kvbudget.planner.curve import whole_requests
from kvbudget.planner.request import Plan, PlanRequest
from kvbudget.planner.workload.chance import Sums
from kvbudget.planner.workload.margin import Margin
from kvbudget.planner.workload.mix import Workload, blocks_asked, within
from kvbudget.units import Tokens

_LENGTH_STEP = 1024


class Numbers(NamedTuple):
    """What a plan carries, all replicas together. `pool_tokens` as the engine prints them; `ceiling` at max_model_len;
    `p50` to `p99` at the lengths of the workload (or of max_model_len); `fits_95`: requests of the workload that fit
    at once with 95 %, None without a workload; `p95_tokens`: the length that `p95` counts, max_model_len where no
    lengths are known."""

    max_model_len: Tokens
    gpus: int
    pool_tokens: int
    ceiling: int
    p50: int
    p95: int
    p99: int
    fits_95: int | None
    starts: bool
    p95_tokens: int = 0


class Counting:
    """Counts what plans carry, for one workload and margin."""

    def __init__(self, workload: Workload | None, margin: Margin) -> None:
        self.workload = workload
        self._margin = margin
        self._requests = workload.requests if workload else ()
        self._totals = sorted(prompt + output for prompt, output in self._requests)

    def numbers(self, plan: Plan, replicas: int = 1) -> Numbers:
        """Of `replicas` times the plan's engines."""
        layout, pool, seqs = plan.stage.layout, plan.pool, plan.settings.max_num_seqs
        usable = max(0, pool.usable_blocks - self._margin.of(pool.usable_blocks))
        engines = replicas * engines_of(plan.request)

        def at_once(length: int) -> int:
            return whole_requests(layout, usable, seqs, length, pool.most_requests).requests * engines

        p50, p95, p99 = map(at_once, plan.ceilings.lengths)
        fits = None
        if self._requests:
            totals = [prompt + output for prompt, output in within(self._requests, pool.max_model_len)]
            sums = Sums(blocks_asked(layout, totals), usable, seqs) if totals else None
            most = min(seqs, pool.most_requests or seqs)
            fits = min(most, sums.largest_count(0.95)) * engines if sums else 0
        return Numbers(
            max_model_len=pool.max_model_len,
            gpus=plan.settings.tensor_parallel_size * plan.settings.pipeline_parallel_size * engines,
            pool_tokens=pool.tokens * engines,
            ceiling=at_once(pool.max_model_len),
            p50=p50,
            p95=p95,
            p99=p99,
            fits_95=fits,
            starts=starts(plan),
            p95_tokens=plan.ceilings.lengths[1],
        )

    def shorter_length(self, plan: Plan) -> int:
        """The p99 length of the workload, rounded up to 1k; half of the context where lengths are not known. No more
        than what starts, where the plan's own does not."""
        longest = plan.pool.max_model_len
        if self._totals:
            kept = self._totals[-(-len(self._totals) * 99 // 100) - 1]
        elif plan.request.prompt_lengths is not None:
            kept = plan.ceilings.lengths[2]
        else:
            kept = max(1, longest // 2)
        kept = min(longest, -(-kept // _LENGTH_STEP) * _LENGTH_STEP)
        most = plan.low_end.largest_max_model_len if plan.low_end else 0
        most = most or plan.pool.largest_max_model_len
        if starts(plan) or not 0 < most < kept:
            return kept
        return most // _LENGTH_STEP * _LENGTH_STEP or most


def held(numbers: Numbers) -> int:
    """Requests at once: of the workload where it is known, else of full length."""
    return numbers.ceiling if numbers.fits_95 is None else numbers.fits_95


def shared_prefixes(numbers: Numbers, gain: float, plan: Plan) -> Numbers:
    """Requests of a workload that share prefixes; never more than max_num_seqs lets run."""
    most = min(plan.settings.max_num_seqs, plan.pool.most_requests or plan.settings.max_num_seqs)
    most *= engines_of(plan.request)
    fits = None if numbers.fits_95 is None else min(most, int(numbers.fits_95 * gain))
    p50, p95, p99 = (min(most, int(count * gain)) for count in (numbers.p50, numbers.p95, numbers.p99))
    return numbers._replace(fits_95=fits, p50=p50, p95=p95, p99=p99)


def engines_of(request: PlanRequest) -> int:
    """Engines beside one another, each with a pool of its own."""
    return request.flags.data_parallel_size
