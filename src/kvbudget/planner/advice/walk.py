"""Decides what a change gains: it is planned alone, and together with those that were taken before it.

Every step's numbers are those of a plan and not of a rule of thumb. A step that cannot be taken says why.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kvbudget.errors import InputError
from kvbudget.planner.advice.cards import Split, lacks_length_only, longest_of, ranks_of
from kvbudget.planner.advice.counting import Counting, Numbers, engines_of, held, shared_prefixes
from kvbudget.planner.advice.solve import WISHES, planned, starts
from kvbudget.planner.advice.spelling import joined, prefix_sharing, spelt
from kvbudget.planner.request import Plan, PlanRequest
from kvbudget.planner.workload.sharing import Sharing

# Errors that more memory ends: a step may be one of several that end them together.
LACKS = frozenset({"max_model_len_too_large", "no_kv_memory", "max_num_seqs_beyond_states", "pipeline_start_check",
                   "margin_leaves_nothing", "beyond_the_card"})  # fmt: skip


class Step(NamedTuple):
    """One thing to do. `flag` is what to change on the engine or the gate. `cost`: free, quality or money.

    `alone`: with this change only; `together`: with those before it in the same order as well. Both None where it
    cannot be taken, and then `note` says why. `enough`: together, the target is
    reached, at the p95 length (None: no target was given).
    `joined`: all of `together` that differs from the plan, as flags of the engine and, for the checkpoint, in words;
    `flags` and `weights_bytes` (of the whole checkpoint): the same by their names in a plan's request. Where the limit
    of requests was lowered, it follows the pool.
    """

    name: str
    flag: str
    cost: str
    note: str
    alone: Numbers | None
    together: Numbers | None
    enough: bool | None
    joined: str = ""
    flags: Mapping[str, object] = {}
    weights_bytes: int | None = None


class Walk:
    """Takes steps one after the other and remembers what has been changed so far: `request`, and its plan, `last`.

    While nothing starts, a step that starts by itself makes those before it needless: they are left out of what follows
    it.
    """

    def __init__(self, plan: Plan, counting: Counting) -> None:
        self._plan = plan
        self._counting = counting
        self._target = plan.request.target_concurrency
        # A target that is missed is no reason not to plan.
        self.request = plan.request
        self.last = plan
        self._follows = False
        self.steps: list[Step] = []

    def spelt(self, **changes: object) -> str:
        """The engine's own flags for them."""
        return spelt(self._plan.engine_name, changes)

    def let_the_limit_follow(self) -> None:
        """From here on max_num_seqs is lowered to what the pool holds, step by step."""
        self._follows = True
        self.last = self._limited(self.request)

    def take(
        self,
        name: str,
        flag: str,
        cost: str,
        note: str,
        change: Callable[[PlanRequest], PlanRequest],
        unless: str = "",
        keep: bool = True,
        shortens: bool = False,
    ) -> None:
        """Plan with `change` alone and on top of what was taken; `unless` says why it cannot be. `keep`: later steps
        build on it. `shortens`: where nothing has started yet, and it would with a shorter context, take that too."""
        if unless:
            self._refused(name, flag, cost, unless)
            return
        base, kept = self.request, change
        try:
            alone = planned(change(self._plan.request))
            if not starts(self.last) and starts(alone):
                base = self._plan.request
            together = self._limited(change(base))
            if shortens and not starts(self.last) and lacks_length_only(together):
                shorter = self._counting.shorter_length(together)
                kept = lambda request: with_flags(change(request), max_model_len=shorter)  # noqa: E731
                together = self._limited(kept(base))
        except InputError as error:
            self._refused(name, flag, cost, str(error))
            return
        known = set() if starts(self.last) else {finding.code for finding in self.last.findings}
        refused = [f for f in together.findings if f.severity == "error" and f.code not in WISHES | known | LACKS]
        if not starts(together) and (starts(self.last) or refused):
            errors = [finding for finding in together.findings if finding.severity == "error"]
            self._refused(name, flag, cost, (refused or errors)[0].message)
            return
        numbers, before = self._counting.numbers(together), self._counting.numbers(self.last)
        if keep and numbers == before and together.settings != self.last.settings:
            note = f"changes nothing here: {note}"
        if keep:
            self.request, self.last = kept(base), together
        self._add(name, flag, cost, note, self._counting.numbers(alone), numbers, together.request)

    def _refused(self, name: str, flag: str, cost: str, why: str) -> None:
        self.steps.append(Step(name, flag, cost, f"not possible: {why}", None, None, None))

    def split(self, splits: tuple[Split, ...], idle: bool) -> None:
        """The best way to use the cards that are there; the next best is named."""
        best = splits[0]
        name = "use all cards" if idle else "split the same cards otherwise"
        note = "no further card; " + _cost_of(best.changes)
        others = [
            split
            for split in splits[1:]
            if split.plan.settings.tensor_parallel_size != best.plan.settings.tensor_parallel_size
        ]
        if not best.numbers.starts:
            note += f"; starts with {longest_of(best.plan):,} tokens"
            if others:
                note += f" ({self.spelt(**others[0].changes)}: {longest_of(others[0].plan):,})"
        elif others:
            note += f"; with {self.spelt(**others[0].changes)} it would be {held(others[0].numbers):,}"
        self.take(
            name,
            self.spelt(**best.changes),
            "free",
            note,
            lambda request: with_flags(request, **best.changes),
            shortens=True,
        )

    def part(self) -> None:
        """MIG slices that were joined, each as an engine of its own."""
        ranks = ranks_of(self._plan.request)
        alone = {
            "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "decode_context_parallel_size": 1,
            "data_parallel_size": 1,
        }  # fmt: skip
        changes = {name: one for name, one in alone.items() if getattr(self._plan.request.flags, name) != one}
        self.take(
            "one engine on each slice",
            self.spelt(**changes),
            "free",
            f"{ranks} replicas behind one gate, of which these are the numbers of one: slices cannot be joined",
            lambda request: with_flags(request._replace(gpus=None), **changes),
            shortens=True,
        )

    def share(self, sharing: Sharing | None) -> None:
        """Prefix sharing: known only from a trace with hashes; it raises what fits, not the pool."""
        flag = prefix_sharing(self._plan.engine_name)
        if sharing is None:
            note = "unknown: what it saves needs a trace that tells equal prefixes apart (hash_ids)"
            self.steps.append(Step("share prefixes", flag, "free", note, None, None, None))
            return
        alone = shared_prefixes(self._counting.numbers(self._plan), sharing.gain, self._plan)
        shared = self.last
        if self._follows and starts(shared):
            limit = int(held(self._counting.numbers(shared)) // engines_of(self.request) * sharing.gain)
            seqs = max(1, min(limit, self._plan.settings.max_num_seqs))
            shared = planned(with_flags(self.request, max_num_seqs=seqs))
        together = shared_prefixes(self._counting.numbers(shared), sharing.gain, shared)
        note = f"{sharing.shared_now:.1%} of prompt tokens are held twice; a batch without equal prefixes gains nothing"
        self._add("share prefixes", flag, "free", note, alone, together, shared.request)

    def refuse(self) -> None:
        """What is left when nothing else is enough."""
        now = self._counting.numbers(self.last)
        missing = max(0, (self._target or 0) - held(now))
        note = (
            f"{missing:,} of {self._target:,} wanted are refused with 429, shared prefixes not counted on"
            if self._target
            else "429 with Retry-After"
        )
        self._add("refuse", "gate: --queue-tokens, --queue-seconds", "quality", note, now, now, self.last.request)

    def replicate(self, replicas: int) -> None:
        """More engines side by side: everything but the longest request grows with them."""
        self._add(
            "one more replica",
            f"{replicas} engines behind one gate",
            "money",
            "one request still has to fit one engine; weights are held once in each",
            self._counting.numbers(self._plan, replicas),
            self._counting.numbers(self.last, replicas),
            self.last.request,
        )

    def _limited(self, request: PlanRequest) -> Plan:
        """The plan with max_num_seqs lowered to what it holds, once it follows; as it is where it would not start."""
        plan = planned(request)
        if not self._follows or not starts(plan):
            return plan
        limit = max(1, held(self._counting.numbers(plan)) // engines_of(request))
        return planned(with_flags(request, max_num_seqs=min(limit, plan.settings.max_num_seqs)))

    def _add(
        self, name: str, flag: str, cost: str, note: str, alone: Numbers, together: Numbers, request: PlanRequest
    ) -> None:
        enough = None if self._target is None else together.starts and together.p95 >= self._target
        before = self._plan.request
        changes = {
            field: value for field, value in request.flags._asdict().items() if value != getattr(before.flags, field)
        }
        weights = None if request.weights in (None, before.weights) else request.weights
        self.steps.append(
            Step(
                name, flag, cost, note, alone, together, enough, joined(self._plan.engine_name, before, request),
                changes, weights.bytes if weights else None,
            )
        )  # fmt: skip


def with_flags(request: PlanRequest, **changes: object) -> PlanRequest:
    """The request with other flags of the engine."""
    return request._replace(flags=request.flags._replace(**changes))  # type: ignore[arg-type]


def _cost_of(changes: Mapping[str, object]) -> str:
    """What people should know of such a split."""
    if changes.get("data_parallel_size", 1) != 1:
        return "each engine has a pool of its own, and one request still has to fit one"
    if changes.get("decode_context_parallel_size", 1) != 1:
        return "each rank keeps a part of the context instead of a copy of it"
    if changes.get("pipeline_parallel_size", 1) != 1:
        return "stages take turns, so a single request gets no faster"
    return "weights and cache are shared out over more of them"
