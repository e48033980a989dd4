"""Decides which question a goal asks of the solvers, and how its answer is told: `kvbudget plan --solve GOAL`."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvbudget.errors import BadValueError
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
from kvbudget.planner.request import Plan, PlanRequest
from kvbudget.units import format_size


class Goal(NamedTuple):
    """A question: what is the largest or smallest value that carries the wish."""

    said: str
    solve: Callable[[PlanRequest, Wish], Solved]
    of_memory: bool = False


class Answer(NamedTuple):
    """`value` is None where none will do; `note` says why, or what else should be known. `length` in tokens."""

    goal: str
    value: int | float | None
    concurrency: int
    length: int
    note: str
    plans: int


GOALS = {
    "max-model-len": Goal("largest --max-model-len", largest_max_model_len),
    "max-num-seqs": Goal("largest --max-num-seqs that the pool carries", largest_max_num_seqs),
    "concurrency": Goal("most requests at once", largest_concurrency),
    "gpu-memory-utilization": Goal("smallest --gpu-memory-utilization", smallest_gpu_memory_utilization),
    "kv-cache-memory-bytes": Goal("smallest --kv-cache-memory-bytes", smallest_kv_cache_memory, of_memory=True),
    "gpus": Goal("fewest GPUs", fewest_gpus),
}


def goals_named(text: str) -> tuple[str, ...]:
    """`gpus,max-model-len`, or `all`. Raises BadValueError naming the goals that there are."""
    names = tuple(GOALS) if text.strip() == "all" else tuple(part.strip() for part in text.split(","))
    unknown = next((name for name in names if name not in GOALS), None)
    if unknown is not None:
        raise BadValueError(f"--solve: {unknown[:40]!r} is no goal", fix=f"one or more of {', '.join(GOALS)}, or all")
    return tuple(dict.fromkeys(names))


def answers_to(plan: Plan, goals: Sequence[str], wish: Wish) -> tuple[Answer, ...]:
    """Each goal alone, everything else as the plan has it. `wish.length` 0: requests of max_model_len."""
    answers = []
    for name in goals:
        found = GOALS[name].solve(plan.request, wish)
        held = found.plan.pool.max_model_len if found.plan else plan.pool.max_model_len
        answers.append(Answer(name, found.value, wish.concurrency, wish.length or held, found.note, found.plans))
    return tuple(answers)


def answers_json(answers: Sequence[Answer]) -> dict[str, object]:
    """Under the key "solved" of kvbudget.plan/1, by goal."""
    return {answer.goal: answer._asdict() for answer in answers}


def answers_lines(answers: Sequence[Answer]) -> list[str]:
    """For people."""
    return [_line(answer) for answer in answers]


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
    return f"{goal.said}: {shown} ({requests} of {answer.length:,} tokens{note})"
