"""Decides which question a goal asks of the solvers, and how its answer is told: `kvbudget plan --solve GOAL`."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvbudget.errors import BadValueError
from kvbudget.planner.advice.slots import has_slots
from kvbudget.planner.advice.solve import (
    Solved,
    Wish,
    fewest_gpus,
    largest_concurrency,
    largest_max_model_len,
    largest_max_num_seqs,
    smallest_gpu_memory_utilization,
    smallest_kv_cache_memory,
)
from kvbudget.planner.advice.spelling import spelt_name
from kvbudget.planner.request import Plan, PlanRequest
from kvbudget.planner.workload.margin import NO_MARGIN, Margin
from kvbudget.units import format_size


class Goal(NamedTuple):
    """A question: what is the largest or smallest value that carries the wish. `said` has {} where the engine's flag
    of `field` goes, and `words` stand there where it has none."""

    said: str
    solve: Callable[[PlanRequest, Wish], Solved]
    of_memory: bool = False
    field: str = ""
    words: str = ""


class Answer(NamedTuple):
    """`value` is None where none will do; `note` says why, or what else should be known. `length` in tokens. `said`:
    the question, with the engine's own flag."""

    goal: str
    value: int | float | None
    concurrency: int
    length: int
    note: str
    plans: int
    said: str = ""


GOALS = {
    "max-model-len": Goal("largest {}", largest_max_model_len, field="max_model_len", words="length of a request"),
    "max-num-seqs": Goal(
        "largest {} that the pool carries", largest_max_num_seqs, field="max_num_seqs", words="number of requests"
    ),
    "concurrency": Goal("most requests at once", largest_concurrency),
    "gpu-memory-utilization": Goal(
        "smallest {}", smallest_gpu_memory_utilization, field="gpu_memory_utilization", words="share of the card"
    ),
    "kv-cache-memory-bytes": Goal(
        "smallest {}", smallest_kv_cache_memory, of_memory=True, field="kv_cache_memory_bytes", words="pool in bytes"
    ),
    "gpus": Goal("fewest GPUs", fewest_gpus),
}
_COUNTED = "concurrency"
# llama.cpp's --ctx-size is of all slots together, the answer of one.
_OF_A_SLOT = {"max-model-len": "longest context of a slot"}


def goals_named(text: str) -> tuple[str, ...]:
    """`gpus,max-model-len`, or `all`. Raises BadValueError naming the goals that there are."""
    names = tuple(GOALS) if text.strip() == "all" else tuple(part.strip() for part in text.split(","))
    unknown = next((name for name in names if name not in GOALS), None)
    if unknown is not None:
        raise BadValueError(f"--solve: {unknown[:40]!r} is no goal", fix=f"one or more of {', '.join(GOALS)}, or all")
    return tuple(dict.fromkeys(names))


def wish_of(plan: Plan, concurrency: int | None = None, length: int | None = None, margin: Margin = NO_MARGIN) -> Wish:
    """What the plan itself is judged by: its target (or one request) of p95 length where lengths are known."""
    if length is None:
        length = plan.ceilings.lengths[1] if plan.request.knows_lengths else 0
    return Wish(concurrency or plan.request.target_concurrency or 1, length, margin)


def solved(plan: Plan, goal: str, wish: Wish) -> Solved:
    """One goal, everything else as the plan has it. The wish is of all engines of --data-parallel-size together, and so
    is the answer where it counts requests or cards; other answers are of each."""
    engines = plan.request.flags.data_parallel_size
    whole = goal == "gpus"  # which is solved over the engines too
    share = wish.concurrency if whole else -(-wish.concurrency // engines)
    found = GOALS[goal].solve(plan.request, wish._replace(concurrency=share))
    notes = [found.note] if found.note else []
    if engines > 1 and goal == _COUNTED and isinstance(found.value, int):
        found = found._replace(value=found.value * engines)
        notes.append(f"on {engines} engines")
    if found.plan is not None and goal != "max-num-seqs":
        seqs = found.plan.request.flags.max_num_seqs
        if seqs != plan.request.flags.max_num_seqs:
            notes.append(f"with {spelt_name(plan.engine_name, 'max_num_seqs') or 'at most'} {seqs}")
    return found._replace(note="; ".join(notes))


def answers_to(plan: Plan, goals: Sequence[str], wish: Wish) -> tuple[Answer, ...]:
    """Each goal alone. `wish.length` 0: requests of max_model_len."""
    answers = []
    for name in goals:
        found = solved(plan, name, wish)
        held = found.plan.pool.max_model_len if found.plan else plan.pool.max_model_len
        said = _question(plan, name)
        answers.append(Answer(name, found.value, wish.concurrency, wish.length or held, found.note, found.plans, said))
    return tuple(answers)


def answers_json(answers: Sequence[Answer]) -> dict[str, object]:
    """Under the key "solved" of kvbudget.plan/1, by goal."""
    return {answer.goal: answer._asdict() for answer in answers}


def answers_lines(answers: Sequence[Answer]) -> list[str]:
    """For people."""
    return [_line(answer) for answer in answers]


def _question(plan: Plan, name: str) -> str:
    goal = GOALS[name]
    if has_slots(plan) and name in _OF_A_SLOT:
        return _OF_A_SLOT[name]
    return goal.said.format(spelt_name(plan.engine_name, goal.field) or goal.words) if goal.field else goal.said


def _line(answer: Answer) -> str:
    goal = GOALS[answer.goal]
    if answer.value is None:
        shown = "none"
    elif goal.of_memory:
        shown = f"{answer.value:,} ({format_size(int(answer.value))} per GPU)"
    else:
        shown = f"{answer.value:,}"
    requests = "requests" if answer.goal in ("concurrency", "max-num-seqs") else (
        f"{answer.concurrency:,} request{'s' if answer.concurrency != 1 else ''}")  # fmt: skip
    note = f"; {answer.note}" if answer.note else ""
    return f"{answer.said}: {shown} ({requests} of {answer.length:,} tokens{note})"
