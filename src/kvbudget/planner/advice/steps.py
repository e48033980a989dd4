"""Decides what to do when the pool is too small: the order of retreat and the order of spending, with new numbers.

Retreat gives something up, spending buys something; both begin with what costs least. Every step is planned again with
its one change, alone and together with the steps before it, so that its numbers are those of a plan and not of a rule
of thumb. A step that cannot be taken says why.
"""

from collections.abc import Callable
from typing import NamedTuple

from kvbudget.errors import InputError
from kvbudget.planner.advice.counting import Counting, Numbers, engines_of, held, shared_prefixes
from kvbudget.planner.advice.parallel import Parallel, parallel_of
from kvbudget.planner.advice.solve import planned, starts
from kvbudget.planner.nested import document
from kvbudget.planner.request import Amount, Plan, PlanRequest
from kvbudget.planner.workload.margin import NO_MARGIN, Margin
from kvbudget.planner.workload.mix import Workload
from kvbudget.planner.workload.sharing import Sharing
from kvbudget.units import Bytes

_QUANTISED_WEIGHTS = 8  # bits


class Step(NamedTuple):
    """One thing to do. `flag` is what to change on the engine or the gate. `cost`: free, quality or money.

    `alone`: with this change only; `together`: with those before it in the same order as well. Both None where it
    cannot be taken, and then `note` says why. `enough`: together, the target is
    reached, at the p95 length (None: no target was given).
    `joined`: all flags of `together` that differ from the plan's; where max_num_seqs was lowered, it follows the pool.
    """

    name: str
    flag: str
    cost: str
    note: str
    alone: Numbers | None
    together: Numbers | None
    enough: bool | None
    joined: str = ""


class Advice(NamedTuple):
    """`now`: the plan as it is. `retreat` and `spending` in the order in which to try them."""

    target_concurrency: int | None
    enough_now: bool | None
    now: Numbers
    retreat: tuple[Step, ...]
    spending: tuple[Step, ...]
    parallel: Parallel | None


def advice_of(
    plan: Plan,
    workload: Workload | None = None,
    margin: Margin = NO_MARGIN,
    sharing: Sharing | None = None,
) -> Advice:
    """Steps for the plan's own target concurrency. About a dozen more plans are made."""
    counting = Counting(workload, margin)
    now, target = counting.numbers(plan), plan.request.target_concurrency
    return Advice(
        target_concurrency=target,
        enough_now=None if target is None else now.starts and now.p95 >= target,
        now=now,
        retreat=_retreat(plan, counting, sharing),
        spending=_spending(plan, counting),
        parallel=parallel_of(plan),
    )


def _retreat(plan: Plan, counting: Counting, sharing: Sharing | None) -> tuple[Step, ...]:
    steps = _Steps(plan, counting)
    now = counting.numbers(plan)
    limit = max(1, held(now) // engines_of(plan.request))
    steps.take(
        "lower concurrency",
        f"--max-num-seqs {limit}",
        "free",
        "the rest waits in the queue instead of being preempted; fewer sequences also leave more memory to the pool",
        lambda request: _flags(request, max_num_seqs=limit),
        keep=False,
    )
    steps.let_the_limit_follow()
    shorter = counting.shorter_length(plan)
    steps.take(
        "shorten the context",
        f"--max-model-len {shorter}",
        "quality",
        "requests that are longer are refused with 400",
        lambda request: _flags(request, max_model_len=shorter),
        unless="no shorter context keeps 99 % of the requests" if shorter >= plan.pool.max_model_len else "",
    )
    steps.take(
        "8-bit KV cache",
        "--kv-cache-dtype fp8",
        "quality",
        "halves a 16-bit cache; test the quality of long answers",
        lambda request: _flags(request, kv_cache_dtype="fp8"),
        unless="the cache has 8 bits already" if plan.settings.kv_element_bytes == 1 else "",
    )
    steps.share(sharing)
    steps.refuse()
    return tuple(steps.taken)


def _spending(plan: Plan, counting: Counting) -> tuple[Step, ...]:
    steps = _Steps(plan, counting)
    engines = engines_of(plan.request)
    limit = max(1, held(counting.numbers(plan)) // engines)
    if limit >= plan.settings.max_num_seqs:
        more = max(2 * plan.settings.max_num_seqs, -(-(plan.request.target_concurrency or 0) // engines))
        steps.take(
            "raise the limit",
            f"--max-num-seqs {more}",
            "free",
            "max_num_seqs ends the count, not the pool",
            lambda request: _flags(request, max_num_seqs=more),
        )
    else:
        steps.take(
            "limit what is let in",
            f"gate at {limit} requests, or by blocks",
            "free",
            "costs nothing and ends preemption; the pool stays as it is",
            lambda request: request,
        )
    shorter = counting.shorter_length(plan)
    steps.take(
        "shorten the context",
        f"--max-model-len {shorter}",
        "free" if counting.workload is not None else "quality",
        "by the lengths of your requests it hurts 1 % at most" if counting.workload is not None else "half of it",
        lambda request: _flags(request, max_model_len=shorter),
        unless="no shorter context keeps 99 % of the requests" if shorter >= plan.pool.max_model_len else "",
    )
    steps.take(
        "quantise the weights",
        f"a checkpoint with {_QUANTISED_WEIGHTS}-bit weights",
        "quality",
        "makes room for the cache, does not make the cache smaller; the size is estimated",
        lambda request: request._replace(weights=_quantised_weights(plan)),
        unless=_cannot_quantise(plan),
    )
    steps.take(
        "8-bit KV cache",
        "--kv-cache-dtype fp8",
        "quality",
        "halves what a token costs",
        lambda request: _flags(request, kv_cache_dtype="fp8"),
        unless="the cache has 8 bits already" if plan.settings.kv_element_bytes == 1 else "",
    )
    ranks = plan.settings.tensor_parallel_size * 2
    steps.take(
        "twice the cards for one engine",
        f"--tensor-parallel-size {ranks}",
        "money",
        "weights are split as well, so the pool more than doubles; every token crosses the link between the cards",
        lambda request: _flags(request._replace(gpus=None), tensor_parallel_size=ranks),
        unless="the pool is given per GPU" if not plan.memory.usable.bytes else "",
    )
    steps.replicate(2)
    return tuple(steps.taken)


class _Steps:
    """Takes steps one after the other and remembers what has been changed so far."""

    def __init__(self, plan: Plan, counting: Counting) -> None:
        self._plan = plan
        self._counting = counting
        self._target = plan.request.target_concurrency
        # A target that is missed is no reason not to plan.
        self._together = plan.request
        self._last = plan
        self._now = counting.numbers(plan)
        self._follows = False
        self.taken: list[Step] = []

    def let_the_limit_follow(self) -> None:
        """From here on --max-num-seqs is lowered to what the pool holds, step by step."""
        self._follows = True
        self._last = self._limited(self._together)

    def _limited(self, request: PlanRequest) -> Plan:
        """The plan with --max-num-seqs lowered to what it holds, once it follows; as it is where it would not start."""
        plan = planned(request)
        if not self._follows or not starts(plan):
            return plan
        limit = max(1, held(self._counting.numbers(plan)) // engines_of(request))
        return planned(_flags(request, max_num_seqs=min(limit, plan.settings.max_num_seqs)))

    def take(
        self,
        name: str,
        flag: str,
        cost: str,
        note: str,
        change: Callable[[PlanRequest], PlanRequest],
        unless: str = "",
        keep: bool = True,
    ) -> None:
        """Plan with `change` alone and on top of what was taken; `unless` says why it cannot be. `keep`: later steps
        build on it."""
        alone = together = None
        if not unless:
            try:
                alone = planned(change(self._plan.request))
                together = self._limited(change(self._together))
            except InputError as error:
                unless = str(error)
            else:
                if not starts(together) and starts(self._last):
                    refused = [f for f in together.findings if f.severity == "error"]
                    unless = refused[0].message
        if unless or alone is None or together is None:
            self.taken.append(Step(name, flag, cost, f"not possible: {unless}", None, None, None))
            return
        if keep:
            self._together, self._last = change(self._together), together
        numbers = self._counting.numbers(alone)
        if keep and numbers == self._now and alone.settings != self._plan.settings:
            note = f"changes nothing here: {note}"
        self._add(name, flag, cost, note, numbers, self._counting.numbers(together), together.request)

    def share(self, sharing: Sharing | None) -> None:
        """Prefix sharing: known only from a trace with hashes; it raises what fits, not the pool."""
        flag = "--enable-prefix-caching"
        if sharing is None:
            note = "unknown: what it saves needs a trace that tells equal prefixes apart (hash_ids)"
            self.taken.append(Step("share prefixes", flag, "free", note, None, None, None))
            return
        alone = shared_prefixes(self._counting.numbers(self._plan), sharing.gain, self._plan)
        shared = self._last
        if self._follows and starts(shared):
            limit = int(held(self._counting.numbers(shared)) // engines_of(self._together) * sharing.gain)
            shared = planned(_flags(self._together, max_num_seqs=max(1, min(limit, self._plan.settings.max_num_seqs))))
        together = shared_prefixes(self._counting.numbers(shared), sharing.gain, shared)
        note = f"{sharing.shared_now:.1%} of prompt tokens are held twice; a batch without equal prefixes gains nothing"
        self._add("share prefixes", flag, "free", note, alone, together, shared.request)

    def refuse(self) -> None:
        """What is left when nothing else is enough."""
        now = self._counting.numbers(self._last)
        missing = max(0, (self._target or 0) - held(now))
        note = (
            f"{missing:,} of {self._target:,} wanted are refused with 429, shared prefixes not counted on"
            if self._target
            else "429 with Retry-After"
        )
        self._add("refuse", "gate: --queue-tokens, --queue-seconds", "quality", note, now, now, self._last.request)

    def replicate(self, replicas: int) -> None:
        """More engines side by side: everything but the longest request grows with them."""
        alone = self._counting.numbers(self._plan, replicas)
        together = self._counting.numbers(self._last, replicas)
        note = "one request still has to fit one engine; weights are held once in each"
        self._add(
            "one more replica",
            f"{replicas} engines behind one gate",
            "money",
            note,
            alone,
            together,
            self._last.request,
        )

    def _add(
        self, name: str, flag: str, cost: str, note: str, alone: Numbers, together: Numbers, request: PlanRequest
    ) -> None:
        enough = None if self._target is None else together.starts and together.p95 >= self._target
        joined = _joined(self._plan.request, request)
        self.taken.append(Step(name, flag, cost, note, alone, together, enough, joined))


# What steps change, in the order in which people would write it.
_CHANGED = ("max_num_seqs", "max_model_len", "kv_cache_dtype", "tensor_parallel_size")


def _joined(before: PlanRequest, after: PlanRequest) -> str:
    """The flags that make `before` into `after`."""
    words = [
        f"--{name.replace('_', '-')} {getattr(after.flags, name)}"
        for name in _CHANGED
        if getattr(before.flags, name) != getattr(after.flags, name)
    ]
    if before.weights != after.weights and after.weights is not None:
        words.append(f"--weights {after.weights.bytes}")
    return " ".join(words)


def _flags(request: PlanRequest, **changes: object) -> PlanRequest:
    return request._replace(flags=request.flags._replace(**changes))  # type: ignore[arg-type]


def _cannot_quantise(plan: Plan) -> str:
    if plan.request.model.quantization is not None:
        return "the weights are quantised already"
    if not plan.memory.usable.bytes:
        return "the pool is given, weights do not change it"
    return "" if plan.settings.element_bytes > 1 else "the weights have 8 bits already"


def _quantised_weights(plan: Plan) -> Amount:
    """The whole checkpoint with one byte for each weight; embedding and head stay as they are."""
    settings, model = plan.settings, plan.request.model
    if plan.request.weights is not None:
        whole = int(plan.request.weights.bytes)
    elif model.parameters is not None:
        whole = model.parameters.total * settings.element_bytes
    else:
        whole = plan.memory.weights.bytes * settings.tensor_parallel_size * settings.pipeline_parallel_size
    kept = min(whole, 2 * model.vocab_size * model.hidden_size * settings.element_bytes)
    size = kept + (whole - kept) * _QUANTISED_WEIGHTS // (8 * settings.element_bytes)
    # As --weights would give it: split over the ranks in the same way.
    return Amount(Bytes(size), "given", f"{_QUANTISED_WEIGHTS}-bit weights, embedding and head as they are")


def advice_json(advice: Advice) -> dict[str, object]:
    """Under the key "advice" of kvbudget.plan/1."""
    return document(advice)


def advice_lines(advice: Advice) -> list[str]:
    """For people: both orders, one line a step."""
    lines = [
        f"now: {_said(advice.now)}{' ENOUGH' if advice.enough_now else ''}",
        "to give something up, in this order:",
    ]
    lines += [_line(index, step) for index, step in enumerate(advice.retreat, 1)]
    lines.append("to spend, in this order:")
    lines += [_line(index, step) for index, step in enumerate(advice.spending, 1)]
    if advice.parallel is not None:
        lines += advice.parallel.lines()
    return lines


def _line(index: int, step: Step) -> str:
    head = f"{index}. {step.name} ({step.cost}): {step.flag}"
    if step.together is None:
        return f"{head}; {step.note}"
    enough = " ENOUGH" if step.enough else ""
    joined = f" ({step.joined})" if step.joined and step.joined != step.flag else ""
    return f"{head}: {_said(step.together)} with the steps before it{joined}{enough}; {step.note}"


def _said(numbers: Numbers) -> str:
    words = f"{numbers.pool_tokens:,} tokens, {numbers.ceiling:,} of {numbers.max_model_len:,} at once"
    if numbers.fits_95 is not None:
        words += f", {numbers.fits_95:,} of your mix"
    return words + (f" on {numbers.gpus} GPUs" if numbers.gpus > 1 else "") + ("" if numbers.starts else " (no start)")
