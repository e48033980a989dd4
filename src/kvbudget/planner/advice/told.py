"""Decides how advice is told: requests first, no step in detail behind the first that is enough, none that helps not.

A pool's tokens are not told: a step that shortens what a request holds lets more run, and may leave fewer tokens.
"""

from collections.abc import Sequence

from kvbudget.planner.advice.counting import Numbers
from kvbudget.planner.advice.steps import Advice
from kvbudget.planner.advice.walk import Step

_TWICE = "twice the cards for one engine"


def advice_lines(advice: Advice) -> list[str]:
    """For people: both orders, one line a step."""
    verdict = " ENOUGH" if advice.enough_now else "" if advice.now.starts else " (does not start)"
    lines = [f"now: {_said(advice.now)}{verdict}"]
    if advice.enough_now:
        names = dict.fromkeys(step.name for step in (*advice.retreat, *advice.spending) if step.together is not None)
        return [*lines, f"nothing has to change; if more is wanted: {', '.join(names)} (their numbers: --json)"]
    for heading, steps in (("to give something up", advice.retreat), ("to spend", advice.spending)):
        lines.append(f"{heading}, in this order, each with those before it:")
        lines += _order(steps, advice, () if steps is advice.retreat else advice.retreat)
    shown = any(f". {_TWICE} (" in line and "not possible" not in line for line in lines)
    if advice.parallel is not None and shown:
        lines += advice.parallel.lines()
    return lines


def _order(steps: Sequence[Step], advice: Advice, told: Sequence[Step]) -> list[str]:
    """Up to the first step that is enough (that starts, where no target is given and nothing does); then names. `told`
    stand above already."""
    lines: list[str] = []
    idle: list[str] = []
    for place, step in enumerate(steps):
        if step.together is not None and not step.together.starts:
            idle.append(step.name)
            continue
        does = bool(step.enough) or (advice.target_concurrency is None and not advice.now.starts)
        does = does and step.together is not None
        if step.together is None and not advice.now.starts:
            continue
        lines.append(_line(len(lines) + 1, step, does, advice, again=step in told))
        if does:
            rest = [one.name for one in steps[place + 1 :] if one.together is not None]
            if rest:
                lines.append(f"if more is wanted: {', '.join(rest)} (their numbers: --json)")
            break
    if idle:
        some = any(step.together is not None and step.together.starts for step in steps)
        lines.append(f"{'not enough alone to start' if some else 'nothing here makes it start'}: {', '.join(idle)}")
    return lines


def _line(index: int, step: Step, does: bool, advice: Advice, *, again: bool) -> str:
    head = f"{index}. {step.name} ({step.cost})" + (f": {step.flag}" if step.flag else "")
    if step.together is None:
        return f"{head}; {step.note}"
    enough = "" if not does else " ENOUGH" if advice.target_concurrency is not None else " STARTS"
    if again:
        return f"{head}: as above{enough}"
    joined = f"; all of it: {step.joined}" if step.joined and step.joined != step.flag else ""
    return f"{head}: {_said(step.together)}{enough}; {step.note}{joined}"


def _said(numbers: Numbers) -> str:
    words = f"{_counted(numbers.ceiling)} of {numbers.max_model_len:,} tokens at once"
    if numbers.p95_tokens not in (0, numbers.max_model_len):
        words += f", {numbers.p95:,} of p95 length ({numbers.p95_tokens:,})"
    if numbers.fits_95 is not None:
        words += f", {numbers.fits_95:,} of your mix"
    return words + (f", on {numbers.gpus} GPUs" if numbers.gpus > 1 else "")


def _counted(number: int) -> str:
    return f"{number:,} {'request' if number == 1 else 'requests'}"
