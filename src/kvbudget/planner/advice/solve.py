"""Decides the largest or smallest value of one input that still carries what is wanted, by planning again and again.

Every answer is checked by the plan itself. Capacity is not always monotone in an input (a longer context may change
block sizes, more pipeline stages may leave one stage with more layers), so after halving an interval the search looks
at a few values beyond its answer and goes on from there. No search makes more than MOST_PLANS plans.
"""

from collections.abc import Callable
from typing import NamedTuple

from kvbudget.errors import InputError
from kvbudget.planner.advice.slots import MOST_SLOTS, has_slots, with_context
from kvbudget.planner.build import make_plan
from kvbudget.planner.request import Plan, PlanRequest
from kvbudget.planner.workload.margin import NO_MARGIN, Margin
from kvbudget.units import Bytes

MOST_PLANS = 96
MOST_GPUS = 64
MOST_ENGINES = 4  # beside one another; more than these are planned one by one
_WITH_COPIES = ("vllm", "sglang")  # --data-parallel-size
_UTILISATION_STEPS = 100
_HIGHEST_SHARES = (100, 99, 98, 97, 96, 95, 92, 88)  # hundredths
_LARGEST_SEQS = 65536
# Errors that say that a wish was missed or that cards are missing, not that the engine would not start.
_TOO_FEW_STATES = "max_num_seqs_beyond_states"
WISHES = frozenset({"below_target_concurrency", "too_few_gpus", "pool_beyond_memory"})


class Solved(NamedTuple):
    """`value` is None where nothing in the range will do. `plan` is the plan with it, `plans` the number made."""

    value: int | float | None
    plan: Plan | None
    plans: int
    note: str = ""


class Wish(NamedTuple):
    """`concurrency` requests of `length` tokens at once (0: of max_model_len), with `margin` of the pool kept back."""

    concurrency: int = 1
    length: int = 0
    margin: Margin = NO_MARGIN


ONE_FULL = Wish()


def capacity(plan: Plan, wish: Wish) -> int:
    """Requests of the wished length that the plan's pool holds at once, whatever max_num_seqs says."""
    usable = plan.pool.usable_blocks - wish.margin.of(plan.pool.usable_blocks)
    blocks = plan.stage.layout.blocks_for(min(wish.length or plan.pool.max_model_len, plan.pool.max_model_len))
    held = max(0, usable) // blocks
    return min(held, plan.pool.most_requests or held)


def planned(request: PlanRequest, concurrency: int = 1) -> Plan:
    """The plan; where a recurrent model has fewer states than the engine's own default of max_num_seqs, that with
    as many as there are, but no fewer than `concurrency`: nobody asked for the default. Raises as make_plan does."""
    request = request._replace(trial=True)
    plan = make_plan(request)
    if request.flags.max_num_seqs is not None or not any(f.code == _TOO_FEW_STATES for f in plan.findings):
        return plan
    seqs = int(plan.pool.num_blocks)
    while seqs >= max(1, concurrency):
        lower = make_plan(_with_flags(request, max_num_seqs=seqs))
        if not any(finding.code == _TOO_FEW_STATES for finding in lower.findings):
            return lower
        seqs = min(seqs - 1, lower.pool.num_blocks)
    return plan


def starts(plan: Plan) -> bool:
    """Whether the engine would start, whatever is wished of it."""
    return not any(finding.severity == "error" and finding.code not in WISHES for finding in plan.findings)


def carries(plan: Plan, wish: Wish) -> bool:
    """Whether the engine starts, takes that length (all of max_model_len, where it starts with a smaller pool than
    that), and holds so many at once."""
    asked = 0 if plan.settings.auto_length else int(plan.settings.max_model_len)
    return (
        starts(plan)
        and plan.pool.max_model_len >= (wish.length or asked)
        and min(capacity(plan, wish), plan.settings.max_num_seqs) >= wish.concurrency
    )


def largest_max_model_len(request: PlanRequest, wish: Wish = ONE_FULL) -> Solved:
    """Largest --max-model-len with which `wish.concurrency` requests of full length (or of `wish.length`) fit."""
    model = request.model
    longest = model.longest_given or model.max_model_len

    slots = _slots(request, wish)

    def at(length: int) -> PlanRequest:
        return with_context(request, length, slots) if slots else _with_flags(request, max_model_len=length)

    return _Search(at, wish).largest(max(1, wish.length), longest, "the model takes no longer one")


def largest_max_num_seqs(request: PlanRequest, wish: Wish = ONE_FULL) -> Solved:
    """Largest --max-num-seqs that the pool carries with every request at `wish.length`."""

    plan = planned(request)
    tokens = plan.pool.max_model_len if has_slots(plan) else 0

    def at(seqs: int) -> PlanRequest:
        return with_context(request, tokens, seqs) if tokens else _with_flags(request, max_num_seqs=seqs)

    most = MOST_SLOTS if has_slots(plan) else _LARGEST_SEQS
    found = _Search(at, wish, lambda seqs, wish: wish._replace(concurrency=seqs)).largest(1, most)
    now = min(capacity(plan, wish), plan.settings.max_num_seqs)
    if found.value is None or tokens or not starts(plan) or now >= found.value:
        return found
    limit = plan.settings.max_num_seqs
    why = f"as planned, with {limit:,}, {now:,} run at once"
    more = ": fewer sequences leave more memory to the pool" if limit > found.value else ""
    return found._replace(note="; ".join(filter(None, (found.note, why + more))))


def largest_concurrency(request: PlanRequest, wish: Wish = ONE_FULL) -> Solved:
    """Requests of `wish.length` at once with the request as it is: min(pool, max_num_seqs)."""
    search = _Search(lambda _: request, wish)
    plan = search.plan_at(0)
    if plan is None or not starts(plan):
        return Solved(None, plan, search.plans, search.refused or "the engine would not start")
    return Solved(min(capacity(plan, wish), plan.settings.max_num_seqs), plan, search.plans)


def smallest_gpu_memory_utilization(request: PlanRequest, wish: Wish = ONE_FULL) -> Solved:
    """Smallest --gpu-memory-utilization, in hundredths, that carries the wish."""
    if _slots(request, wish):
        return Solved(None, None, 0, "llama.cpp takes no share of a card: the context decides the pool")
    if request.kv_cache_memory is not None or request.flags.num_gpu_blocks_override is not None:
        return Solved(None, None, 0, "the pool is given, the share of the card decides nothing")

    def at(hundredths: int) -> PlanRequest:
        return _with_flags(request, gpu_memory_utilization=hundredths / _UTILISATION_STEPS)

    # All of the card may be more than is free of it, or leave nothing for what is allocated late.
    found = _Search(at, wish).smallest(1, *_HIGHEST_SHARES)
    return found if found.value is None else found._replace(value=found.value / _UTILISATION_STEPS)


def smallest_kv_cache_memory(request: PlanRequest, wish: Wish = ONE_FULL) -> Solved:
    """Smallest --kv-cache-memory-bytes per GPU that carries the wish; a whole number of blocks."""
    if _slots(request, wish):
        return Solved(None, None, 0, "the context decides the pool, no size in bytes does")
    base = _with_flags(request, num_gpu_blocks_override=None, max_num_seqs=_seqs(request, wish))

    def pool_of(size: int) -> PlanRequest:
        return base._replace(kv_cache_memory=Bytes(size))

    probe = _Search(pool_of, wish).plan_at(2**50)  # a pool for anything: only its layout is asked
    if probe is None:
        return Solved(None, None, 1, "no plan with a given pool")
    layout = probe.stage.layout
    size = layout.bytes_per_block
    needed = layout.blocks_for(wish.length or probe.pool.max_model_len) * wish.concurrency
    # What the layout says is enough on one stage with one null block; more is looked at where it is not.
    enough = int((needed + wish.margin.blocks) / (1 - wish.margin.fraction)) + 2
    found = _Search(lambda blocks: pool_of(blocks * size), wish).smallest(1, enough, 2 * enough, 8 * enough)
    if found.value is None or found.plan is None:
        return found
    beyond = any(finding.code == "pool_beyond_memory" for finding in found.plan.findings)
    note = "more than the card has beside the weights" if beyond else found.note
    return found._replace(value=int(found.value) * size, plans=found.plans + 1, note=note)


def fewest_gpus(request: PlanRequest, wish: Wish = ONE_FULL, most_gpus: int = MOST_GPUS) -> Solved:
    """Fewest cards of the request's kind: tensor parallel sizes that divide the attention heads, with as many pipeline
    stages as needed, and up to MOST_ENGINES such engines beside one another. Of as many cards, as many engines as are
    asked for come first, then fewer, then fewer stages: they are less to run. `wish` is of all engines together."""
    slots = _slots(request, wish)
    single = request.gpu is not None and bool(request.gpu.mig_profile)
    if single:
        most_gpus = max(1, request.flags.data_parallel_size)
    base = _with_flags(request._replace(gpus=None), max_num_seqs=_seqs(request, wish))
    if slots:
        plan = planned(request)
        base = request._replace(gpus=None, flags=request.flags._replace(tensor_split=None))
        if capacity(plan, wish) < wish.concurrency:
            base = with_context(base, wish.length or plan.pool.max_model_len, slots)
    plans, refused, seen = 0, "", most_gpus
    for total, engines, stages, tensor in _splits(request, most_gpus, slots=bool(slots), single=single):
        if plans == MOST_PLANS:
            seen = total - 1
            break
        share = -(-wish.concurrency // engines)
        changes = {
            "tensor_parallel_size": tensor, "pipeline_parallel_size": stages, "data_parallel_size": engines,
        }  # fmt: skip
        search = _Search(
            lambda _, changes=changes: _with_flags(base, **changes),  # type: ignore[misc]
            wish._replace(concurrency=share),
        )
        plans += 1
        found = search.plan_at(0)
        if found is not None and carries(found, wish._replace(concurrency=share)):
            beside = f" -dp {engines}" if engines > 1 or request.flags.data_parallel_size > 1 else ""
            return Solved(total, found, plans, "" if slots else f"-tp {tensor} -pp {stages}{beside}")
        refused = search.refused or refused
    if single:
        refused = "a process sees one MIG slice only: take a larger slice, or more replicas"
    return Solved(None, None, plans, refused or f"not on {seen} cards")


def _splits(request: PlanRequest, most_gpus: int, *, slots: bool, single: bool) -> list[tuple[int, int, int, int]]:
    """(cards, engines, stages, ranks), in the order in which to try them."""
    heads, layers = request.model.attention_heads, len(request.model.layers)
    copies = request.engine.partition("@")[0] in _WITH_COPIES
    engines_most = max(MOST_ENGINES, request.flags.data_parallel_size) if copies else 1
    if single:
        return [(engines, engines, 1, 1) for engines in range(1, most_gpus + 1)]
    if slots:  # llama.cpp shares layers out over any number of cards, it splits none
        return [(stages, 1, stages, 1) for stages in range(1, min(layers + 1, most_gpus) + 1)]
    found = (
        (engines * tensor * stages, engines, stages, tensor)
        for engines in range(1, engines_most + 1)
        for tensor in range(1, min(heads, most_gpus // engines) + 1)
        if heads % tensor == 0
        for stages in range(1, min(layers, most_gpus // engines // tensor) + 1)
        if stages & (stages - 1) == 0
    )
    asked = request.flags.data_parallel_size
    return sorted(found, key=lambda split: (split[0], split[1] != asked, *split[1:]))


class _Search:
    """Plans along one input, counted. `wish_at` lets the wish follow the value."""

    def __init__(
        self,
        request_at: Callable[[int], PlanRequest],
        wish: Wish,
        wish_at: Callable[[int, Wish], Wish] = lambda _, wish: wish,
    ) -> None:
        self._request_at = request_at
        self._wish = wish
        self._wish_at = wish_at
        self.plans = 0
        self.refused = ""

    def plan_at(self, value: int) -> Plan | None:
        """None where it cannot be planned at all; `refused` says why."""
        self.plans += 1
        try:
            return planned(self._request_at(value), self._wish.concurrency)
        except InputError as error:
            self.refused = str(error)
            return None

    def largest(self, low: int, high: int, beyond: str = "") -> Solved:
        """The largest value in low..high that carries the wish."""
        if self._good(high):
            return self._solved(high, beyond)
        if high <= low or not self._good(low):
            return self._solved(self._any(low, high), "")
        good, bad, note = low, high, ""
        while self.plans < MOST_PLANS:
            good = self._halved(good, bad)
            higher = self._any(good + 1, high)
            if higher is None:
                break
            good, bad, note = higher, high, "not monotone: a smaller value than this fails as well"
        return self._solved(good, note)

    def smallest(self, low: int, *highs: int) -> Solved:
        """The smallest value from `low` to the first of `highs` that carries the wish."""
        high = next((value for value in highs if self._good(value)), None)
        if high is None:
            high = self._any(low, highs[-1])
        if high is None:
            return self._solved(None, "")
        bad, good = low - 1, high
        while good - bad > 1 and self.plans < MOST_PLANS:
            middle = (bad + good) // 2
            bad, good = (bad, middle) if self._good(middle) else (middle, good)
        for below in (good - 2, good - good // 16, good // 2):
            if low <= below < good and self.plans < MOST_PLANS and self._good(below):
                return self._solved(below, "not monotone: a larger value than this fails")
        return self._solved(good, "")

    def _halved(self, good: int, bad: int) -> int:
        while bad - good > 1 and self.plans < MOST_PLANS:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if self._good(middle) else (good, middle)
        return good

    def _any(self, low: int, high: int) -> int | None:
        """A good value among a few between low and high, the larger first."""
        width = high - low
        for value in sorted({low + 1, low + 15, low + 255, low + width // 4, low + width // 2}, reverse=True):
            if low <= value < high and self.plans < MOST_PLANS and self._good(value):
                return value
        return None

    def _good(self, value: int) -> bool:
        plan = self.plan_at(value)
        return plan is not None and carries(plan, self._wish_at(value, self._wish))

    def _solved(self, value: int | None, note: str) -> Solved:
        if value is None:
            return Solved(None, None, self.plans, self.refused or "no value in the range will do")
        plan = self.plan_at(value)
        return Solved(value, plan, self.plans, note)


def _slots(request: PlanRequest, wish: Wish) -> int:
    """Slots that share one context, as many as are wished at least; 0 for engines that have none."""
    try:
        plan = planned(request)
    except InputError:
        return 0
    return max(wish.concurrency, plan.settings.max_num_seqs) if has_slots(plan) else 0


def _seqs(request: PlanRequest, wish: Wish) -> int | None:
    """max_num_seqs as it is; more where the wish is more, so that it does not hide what memory would do."""
    seqs = request.flags.max_num_seqs
    return wish.concurrency if seqs is not None and seqs < wish.concurrency else seqs


def _with_flags(request: PlanRequest, **changes: object) -> PlanRequest:
    return request._replace(flags=request.flags._replace(**changes))  # type: ignore[arg-type]
