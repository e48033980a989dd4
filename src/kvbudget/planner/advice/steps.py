"""Decides what to do when the pool is too small: the order of retreat and the order of spending, with new numbers.

Retreat gives something up, spending buys something; both begin with what costs least: other splits of the cards that
are there cost nothing. walk.py plans each step, told.py writes it for people.
"""

from typing import NamedTuple

from kvbudget.engines.registry import engine_named
from kvbudget.planner.advice.cards import better_splits, cards_of, one_card_only, ranks_of
from kvbudget.planner.advice.counting import Counting, Numbers, engines_of, held
from kvbudget.planner.advice.parallel import Parallel, parallel_of
from kvbudget.planner.advice.slots import context_of, has_slots, with_context
from kvbudget.planner.advice.solve import Wish, largest_max_model_len, starts
from kvbudget.planner.advice.spelling import eight_bit_cache, prefix_sharing
from kvbudget.planner.advice.walk import Step, Walk, with_flags
from kvbudget.planner.nested import document
from kvbudget.planner.request import Amount, Plan
from kvbudget.planner.room import layers_on_cards, more_cards
from kvbudget.planner.workload.margin import NO_MARGIN, Margin
from kvbudget.planner.workload.mix import Workload
from kvbudget.planner.workload.sharing import Sharing
from kvbudget.units import Bytes

_QUANTISED_WEIGHTS = 8  # bits
_HARDLY_MORE = 1.1  # of the wanted bits: formats keep scales beside them


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
    """Steps for the plan's own target concurrency. About a dozen more plans are made; some more for several cards."""
    counting = Counting(workload, margin)
    now, target = counting.numbers(plan), plan.request.target_concurrency
    cards = _Cards(plan, counting)
    return Advice(
        target_concurrency=target,
        enough_now=None if target is None else now.starts and now.p95 >= target,
        now=now,
        retreat=_retreat(plan, counting, cards, sharing),
        spending=_spending(plan, counting, cards),
        parallel=None if one_card_only(plan) or has_slots(plan) else parallel_of(plan),
    )


class _Cards:
    """The first step of both orders, where there are several cards: it costs nothing."""

    def __init__(self, plan: Plan, counting: Counting) -> None:
        self._splits = better_splits(plan, counting)
        self._idle = ranks_of(plan.request) < cards_of(plan)
        self._joined_slices = bool(one_card_only(plan)) and ranks_of(plan.request) > 1

    def take(self, walk: Walk) -> None:
        if self._joined_slices:
            walk.part()
        elif self._splits:
            walk.split(self._splits, self._idle)


def _retreat(plan: Plan, counting: Counting, cards: _Cards, sharing: Sharing | None) -> tuple[Step, ...]:
    walk = Walk(plan, counting)
    cards.take(walk)
    if not has_slots(plan):
        limit = max(1, held(counting.numbers(walk.last)) // engines_of(walk.request))
        walk.take(
            "lower concurrency",
            walk.spelt(max_num_seqs=limit),
            "free",
            "the rest waits in the queue and is not preempted; fewer sequences also leave more memory to the pool",
            lambda request: with_flags(request, max_num_seqs=limit),
            keep=False,
        )
        walk.let_the_limit_follow()
    _shorten(walk, plan, counting, "quality", "requests that are longer are refused with 400")
    _eight_bit(walk, plan, "halves a 16-bit cache; test the quality of long answers")
    _fewer_layers(walk, plan)
    if prefix_sharing(plan.engine_name):
        walk.share(sharing)
    walk.refuse()
    return tuple(walk.steps)


def _spending(plan: Plan, counting: Counting, cards: _Cards) -> tuple[Step, ...]:
    walk = Walk(plan, counting)
    cards.take(walk)
    _limit(walk, plan, counting)
    known = counting.workload is not None
    note = "by the lengths of your requests it hurts 1 % at most" if known else "longer requests are refused with 400"
    _shorten(walk, plan, counting, "free" if known else "quality", note)
    walk.take(
        "quantise the weights",
        f"a checkpoint with {_QUANTISED_WEIGHTS}-bit weights",
        "quality",
        "makes room for the cache, does not make the cache smaller; the size is estimated",
        lambda request: request._replace(weights=_quantised_weights(plan)),
        unless=_cannot_quantise(plan),
        shortens=not has_slots(plan),
    )
    _eight_bit(walk, plan, "halves what a token costs")
    _more_cards(walk, plan)
    walk.replicate(2)
    return tuple(walk.steps)


def _limit(walk: Walk, plan: Plan, counting: Counting) -> None:
    """Who may run: a limit that is in the way is raised, one that promises too much is kept at the gate."""
    engines = engines_of(walk.request)
    limit = held(counting.numbers(walk.last)) // engines
    wanted = -(-(plan.request.target_concurrency or 0) // engines)
    if has_slots(plan):
        slots, tokens = max(wanted, plan.settings.max_num_seqs), plan.ceilings.lengths[1]
        walk.take(
            "a context for each slot",
            walk.spelt(**context_of(tokens, slots)),
            "free",
            f"{slots} slots of {tokens:,} tokens each; the context is that of all slots together",
            lambda request: with_context(request, tokens, slots),
        )
    elif not starts(walk.last):
        return
    elif limit >= walk.last.settings.max_num_seqs:
        more = max(2 * plan.settings.max_num_seqs, wanted)
        walk.take(
            "raise the limit",
            walk.spelt(max_num_seqs=more),
            "free",
            "the limit ends the count, not the pool",
            lambda request: with_flags(request, max_num_seqs=more),
        )
    else:
        limit = max(1, limit)
        walk.take(
            "limit what is let in",
            f"gate at {limit} {'request' if limit == 1 else 'requests'}, or by blocks",
            "free",
            "costs nothing and ends preemption; the pool stays as it is",
            lambda request: request,
        )


def _shorten(walk: Walk, plan: Plan, counting: Counting, cost: str, note: str) -> None:
    shorter = counting.shorter_length(walk.last)
    slots = max(plan.request.target_concurrency or 0, plan.settings.max_num_seqs)
    if has_slots(plan):
        most = largest_max_model_len(walk.request, Wish(slots)).value
        shorter = min(shorter, int(most or shorter))
    unless = "no shorter context keeps 99 % of the requests" if shorter >= walk.last.pool.max_model_len else ""
    if has_slots(plan):
        flag = walk.spelt(**context_of(shorter, slots))
        change = lambda request: with_context(request, shorter, slots)  # noqa: E731 # as its twin below
    else:
        flag = walk.spelt(max_model_len=shorter)
        change = lambda request: with_flags(request, max_model_len=shorter)  # noqa: E731
    walk.take("shorten the context", flag, cost, note, change, unless=unless)


def _eight_bit(walk: Walk, plan: Plan, note: str) -> None:
    changes = eight_bit_cache(plan.engine_name)
    walk.take(
        "8-bit KV cache",
        walk.spelt(**changes),
        "quality",
        note,
        lambda request: with_flags(request, **changes),
        unless=_already_8_bit(plan),
        shortens=not has_slots(plan),
    )


def _fewer_layers(walk: Walk, plan: Plan) -> None:
    """llama.cpp runs on the processor what the cards have no room for."""
    if not has_slots(plan) or starts(walk.last):
        return
    engine = engine_named(plan.request.engine)
    layers = layers_on_cards(walk.request, engine, walk.last.settings)
    walk.take(
        "fewer layers on the cards",
        walk.spelt(gpu_layers=layers or 0),
        "speed",
        "the others and their cache lie in the machine's memory, and run on its processor",
        lambda request: with_flags(request, gpu_layers=layers or 0),
        unless="" if layers is not None else "no number of layers is enough",
    )


def _more_cards(walk: Walk, plan: Plan) -> None:
    flags = walk.request.flags
    unless = one_card_only(plan) or ("the pool is given per GPU" if not plan.memory.usable.bytes else "")
    if has_slots(plan):
        cards = None if starts(walk.last) else more_cards(walk.request, engine_named(plan.request.engine),
                                                          walk.last.settings)  # fmt: skip
        changes: dict[str, object] = {"pipeline_parallel_size": cards or flags.pipeline_parallel_size * 2}
        changes |= {"tensor_split": None} if flags.tensor_split else {}
        note = "layers are shared out, so weights and cache are as well; the cards take turns"
    else:
        changes = {"tensor_parallel_size": flags.tensor_parallel_size * 2}
        note = "weights are split as well, so the pool more than doubles; every token crosses the link between cards"
    walk.take(
        "more cards" if has_slots(plan) else "twice the cards for one engine",
        walk.spelt(**changes),
        "money",
        note,
        lambda request: with_flags(request._replace(gpus=None), **changes),
        unless=unless,
        shortens=not has_slots(plan),
    )


def _already_8_bit(plan: Plan) -> str:
    narrow = plan.settings.kv_element_bytes == 1 or plan.settings.kv_cache_dtype.startswith(("q4", "q5", "q8", "iq4"))
    return "the cache has 8 bits already, or fewer" if narrow else ""


def _cannot_quantise(plan: Plan) -> str:
    if plan.request.model.quantization is not None:
        return "the weights are quantised already"
    if not plan.memory.usable.bytes:
        return "the pool is given, weights do not change it"
    given, parameters = plan.request.weights, plan.request.model.parameters
    if given is not None and parameters is not None and parameters.total:
        bits = 8 * given.bytes / parameters.total
        if bits < _HARDLY_MORE * _QUANTISED_WEIGHTS:
            return f"the weights have {bits:.1f} bits already"
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
