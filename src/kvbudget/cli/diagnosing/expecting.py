"""Decides what comes of each action, by planning it: pool and requests at once, before and after.

A finding knows its lever, not the model; with a budget or the flags of a plan the figures follow from `make_plan`.
"""

import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import NoReturn

from kvbudget.diagnose.finding import Action, Diagnosis, Lever
from kvbudget.diagnose.symptoms import Symptoms
from kvbudget.engines.window import Observation
from kvbudget.errors import BadConfigError, InputError
from kvbudget.planner.advice.counting import Counting, Numbers
from kvbudget.planner.advice.solve import planned
from kvbudget.planner.advice.steps import advice_of
from kvbudget.planner.advice.walk import Step, with_flags
from kvbudget.planner.request import Plan
from kvbudget.planner.workload.margin import NO_MARGIN

_LONGEST = 2_000
_APART = 0.05  # of the observed pool; less is what start-ups differ by
_LIMITS = (Lever.LOWER_CONCURRENCY, Lever.RAISE_THE_LIMIT)


def plan_of_budget(path: str) -> Plan:
    """The plan of a reviewed budget, made again. Raises InputError for one that cannot be read or planned."""
    from kvbudget.cli.budget import planned_again
    from kvbudget.edge.budget.file import read_budget

    return planned_again(read_budget(path), path)


def plan_of_flags(text: str) -> Plan:
    """The plan of `MODEL --gpu ...`, as kvbudget plan takes them. Raises InputError."""
    from kvbudget.cli import plan as plan_command
    from kvbudget.cli.main import parser_of

    try:
        words = shlex.split(text[:_LONGEST])
    except ValueError as error:
        raise BadConfigError(f"--plan: {error}", fix="quote as in a shell: --plan 'MODEL --gpu h100'") from None
    parser = parser_of("plan")
    parser.error = _refuse  # type: ignore[method-assign]
    return plan_command.planned(parser.parse_args(words)).plan


def _refuse(message: str) -> NoReturn:
    raise BadConfigError(f"--plan: {message}", fix="as kvbudget plan takes it: --plan 'MODEL --gpu h100'")


class Expecting:
    """One plan, and what its advice says of each lever; planned once, however often it is looked."""

    def __init__(self, plan: Plan) -> None:
        advice = advice_of(plan)
        self._plan = plan
        self._now = advice.now
        self._steps: dict[str, Step] = {step.name: step for step in (*advice.spending, *advice.retreat)}

    def told(self, diagnosis: Diagnosis, seen: Observation) -> Diagnosis:
        """The same, where every action that has a lever says what the planner computes for it, with a note for each
        engine in `seen` whose pool is another than the planned one."""
        findings = tuple(
            replace(finding, actions=tuple(map(self._expected, finding.actions))) for finding in diagnosis.findings
        )
        notes = dict.fromkeys((*diagnosis.notes, *self._apart(seen)))
        return replace(diagnosis, findings=findings, notes=tuple(notes))

    def _apart(self, seen: Observation) -> Iterator[str]:
        planned_tokens = self._now.pool_tokens
        for window in seen.engines:
            observed = Symptoms(window).pool_tokens
            if observed and abs(planned_tokens / observed - 1) > _APART:
                where = f" of {window.where}" if window.where else ""
                yield (
                    f"the pool{where} has {observed:,.0f} tokens, and the plan's {planned_tokens:,} tokens: what is"
                    " planned is another engine, or has other flags (kvbudget receipt compares the two)"
                )

    def _expected(self, action: Action) -> Action:
        if action.lever is None:
            return action
        if action.lever in _LIMITS and action.value is not None:
            limit = _with_limit(self._plan, self._now, action.value)
            return action._replace(expected=f"{limit}; {action.expected}")
        step = self._steps.get(action.lever.value)
        if step is None or step.alone is None:
            why = "" if step is None else f" ({step.note})"
            return action._replace(expected=f"{action.expected}{why}")
        moves = "; ".join(_moves(self._now, step.alone))
        flag = f"; {step.flag}" if step.flag and action.lever is not Lever.REPLICA else ""
        return action._replace(expected=f"planned: {moves or 'nothing changes'}{flag}; {action.expected}")


def _with_limit(plan: Plan, now: Numbers, limit: int) -> str:
    """What the pool becomes with another max_num_seqs: fewer sequences leave more memory to it, and more take some."""
    try:
        changed = planned(with_flags(plan.request, max_num_seqs=limit))
    except InputError as error:
        return f"planned: not possible ({error.message})"
    then = Counting(None, NO_MARGIN).numbers(changed)
    return f"planned with --max-num-seqs {limit}: {'; '.join(_moves(now, then)) or 'the pool stays as it is'}"


def _moves(now: Numbers, then: Numbers) -> Iterator[str]:
    if now.pool_tokens != then.pool_tokens:
        yield f"pool {now.pool_tokens:,} -> {then.pool_tokens:,} tokens"
    if now.max_model_len != then.max_model_len:
        yield f"max_model_len {now.max_model_len:,} -> {then.max_model_len:,}"
    if now.ceiling != then.ceiling:
        yield f"at most {now.ceiling:,} -> {then.ceiling:,} requests of {then.max_model_len:,} tokens at once"
    if now.gpus != then.gpus:
        yield f"{now.gpus} -> {then.gpus} GPUs"
    if not then.starts:
        yield "the engine would not start so"
