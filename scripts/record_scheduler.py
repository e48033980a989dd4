"""Records what vLLM's own scheduler does with some loads, for tests/simulate: `record_scheduler.py ENGINE_VENV`.

Run it again after a change of tests/support/scheduler_loads.py or of the engine's version, and look at the difference
before you keep it. ENGINE_VENV: what `make test-engine` installs.
"""

import sys
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from kvbudget.errors import BadValueError
from scheduler_cases import RECORD, ask_vllm, replay_of, write_record
from scheduler_loads import FAMILIES, draw, named_loads

_MOST_STEPS, _LEAST_PREEMPTIONS = 200, 4


def main() -> None:
    """Record, and say how much."""
    loads = named_loads() + [draw(_telling_seed(family), family) for family in FAMILIES]
    answers = ask_vllm(Path(sys.argv[1]), loads)
    for load, answer in zip(loads, answers, strict=True):
        if "broken" in answer:
            raise SystemExit(f"{load['name']}: {answer['broken']}")
    write_record(list(zip(loads, answers, strict=True)))
    steps = sum(len(answer["rows"]) for answer in answers)
    print(f"{len(loads)} loads, {steps} steps, {RECORD.stat().st_size} bytes in {RECORD}")


def _telling_seed(family: str) -> int:
    """The first one whose load is short and preempts somebody."""
    for seed in range(1000, 2000):
        try:
            steps = list(islice(replay_of(draw(seed, family)), _MOST_STEPS + 1))
        except BadValueError:  # somebody waits for ever
            continue
        if len(steps) <= _MOST_STEPS and sum(len(step.preempted) for step in steps) >= _LEAST_PREEMPTIONS:
            return seed
    raise SystemExit(f"{family}: no load of this family is short and tight")


if __name__ == "__main__":
    main()
