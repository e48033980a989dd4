"""Fits and checks the constants of planner/hardware/estimates.py on figures of public start-up logs (scripts/data/receipts.json).

    python scripts/fit_overheads.py            # fitted constants, and their error on models that were left out
    python scripts/fit_overheads.py --check    # one line a receipt: pool as planned and as reported; exit 1 if too far off

The check is made twice. With the weights that the log printed: how good the other estimates are. And, where the receipt
gives the model's sizes, as `kvbudget plan` would make it: from config.json, the card, the version and the flags alone.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

from kvbudget.engines.flags import EngineFlags
from kvbudget.errors import KvbudgetError
from kvbudget.model.read import model_from_config
from kvbudget.planner.build import make_plan
from kvbudget.planner.hardware.estimates import (
    CONSTANTS,
    Constants,
    Era,
    Run,
    Shape,
    graph_count,
    overheads,
    version_of,
)
from kvbudget.planner.hardware.gpus import gpu_named
from kvbudget.planner.request import PlanRequest
from kvbudget.units import GIB, Bytes

DATA = Path(__file__).parent / "data" / "receipts.json"
ONE_CAMPAIGN = ("accuracy_report.md", "empirical-vllm-memory-results.md")  # most receipts are of its H100s
ELSE = "16 GB class"  # a log that names no card
MEDIAN, TAIL, COVERAGE = 0.02, 0.06, 0.9  # what is promised for the pool
ARCHITECTURES = {
    "llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM", "gemma": "GemmaForCausalLM", "gemma2": "Gemma2ForCausalLM",
    "granite": "GraniteForCausalLM", "phi": "PhiForCausalLM", "phi3": "Phi3ForCausalLM", "mixtral": "MixtralForCausalLM",
}  # fmt: skip


class Row(NamedTuple):
    """One start: what went in, and what was printed, in GiB on one GPU; None: not printed."""

    source: str
    model: str
    gpu: str
    total: float
    utilization: float
    max_model_len: int | None
    shape: Shape
    run: Run
    config: dict[str, object]
    weights: float | None
    activation: float | None
    graphs: float | None
    non_torch: float | None
    kv: float | None

    @property
    def usable(self) -> float:
        """GiB that the engine may use."""
        return self.total * self.utilization


class Outcome(NamedTuple):
    """A receipt's pool as planned, as reported, and whether the interval held it; GiB."""

    row: Row
    planned: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Relative to the pool that was reported."""
        assert self.row.kv is not None
        return (self.planned - self.row.kv) / self.row.kv

    @property
    def covered(self) -> bool:
        """Half a hundredth more on either side: logs print two digits."""
        assert self.row.kv is not None
        return self.low - 0.005 <= self.row.kv <= self.high + 0.005


def rows() -> list[Row]:
    """All receipts. The card's memory is that of planner/hardware/gpus.py unless the log's card is not one that we know."""
    data = json.loads(DATA.read_text())
    return [_row(entry, data["models"][entry["model"]]) for entry in data["receipts"]]


def _row(entry: dict, model: dict) -> Row:  # type: ignore[type-arg]
    config = model["config"]
    total = entry.get("total_gib") or gpu_named(entry["gpu"]).memory_bytes / GIB
    known = entry["gpu"] != ELSE
    return Row(
        source=entry["source"],
        model=entry["model"],
        gpu=entry["gpu"],
        total=total,
        utilization=entry["utilization"],
        max_model_len=entry.get("max_model_len"),
        shape=Shape(
            config["vocab_size"], config["hidden_size"], config["intermediate_size"], model["experts_per_token"],
            model["expert_intermediate_size"], model["multimodal"], model["recurrent"],
        ),
        run=Run(
            version=version_of(entry["version"]),
            max_num_seqs=entry["max_num_seqs"],
            max_num_batched_tokens=entry["max_num_batched_tokens"],
            element_bytes=entry.get("element_bytes", 2),
            tensor_parallel_size=entry.get("tp", 1),
            pipeline_parallel_size=entry.get("pp", 1),
            samples=entry.get("pp", 1) == 1,  # logs print the first stage
            enforce_eager=entry.get("enforce_eager", False),
            nvlink=known and gpu_named(entry["gpu"]).link == "nvlink",
            compile_cached=entry.get("compile_cached"),
        ),
        config=config,
        weights=entry.get("weights_gib"),
        activation=entry.get("activation_gib"),
        graphs=entry.get("graphs_gib"),
        non_torch=entry.get("non_torch_gib"),
        kv=entry.get("kv_gib"),
    )  # fmt: skip


def planned(row: Row, weights: float, constants: Constants = CONSTANTS) -> Outcome:
    """The pool of this receipt."""
    other = overheads(row.shape, row.run, constants).total
    room = row.usable - weights
    return Outcome(row, room - other.best / GIB, room - other.high / GIB, room - other.low / GIB)


def planned_from_flags(row: Row) -> Outcome | None:
    """The pool as the planner makes it: nothing of the log goes in but what its user had typed.

    None where the receipt does not say the model well enough. Where `max_model_len` is known it, and not the batch that
    the log shows, is what was typed.
    """
    kind = str(row.config.get("model_type", ""))
    if kind not in ARCHITECTURES or row.model.endswith(("FP8", "AWQ")):
        return None
    config = {"max_position_embeddings": 131072, **row.config, "architectures": [ARCHITECTURES[kind]]}
    flags = EngineFlags(
        max_model_len=row.max_model_len or 4096,
        max_num_seqs=row.run.max_num_seqs,
        max_num_batched_tokens=None if row.max_model_len else row.run.max_num_batched_tokens,
        dtype="float32" if row.run.element_bytes == 4 else "auto",
        tensor_parallel_size=row.run.tensor_parallel_size,
        pipeline_parallel_size=row.run.pipeline_parallel_size,
        gpu_memory_utilization=row.utilization,
        enforce_eager=row.run.enforce_eager,
    )
    gpu = None if row.gpu == ELSE else gpu_named(row.gpu)
    version = ".".join(map(str, row.run.version))
    try:
        plan = make_plan(
            PlanRequest(
                model_from_config(config, row.model),
                f"vllm@{version}",
                flags,
                gpu,
                gpu_memory=Bytes(round(row.total * GIB)),
            )
        )
    except KvbudgetError as error:
        print(f"  {row.model}: {error}", file=sys.stderr)
        return None
    assert plan.memory is not None
    kv = plan.memory.kv
    return Outcome(row, kv.bytes / GIB, kv.low / GIB, kv.high / GIB)


def fit(receipts: list[Row], start: Constants = CONSTANTS) -> Constants:
    """Least absolute error of the activation peak, coordinate by coordinate. Non-torch and graphs: see `medians`."""
    fields = ("sampling_hidden_copies", "peak_gib", "multimodal_gib", "encoder_gib")
    constants = start
    for step in (0.2, 0.05, 0.01):
        for name in fields:
            constants = _best(receipts, constants, name, step)
        constants = constants._replace(
            eras=tuple(_fitted_era(receipts, constants, era, step) for era in constants.eras)
        )
    return constants


def _best(receipts: list[Row], constants: Constants, name: str, step: float) -> Constants:
    tried = [constants._replace(**{name: getattr(constants, name) * (1 + step * k)}) for k in range(-3, 4)]
    return min(tried, key=lambda candidate: _activation_error(receipts, candidate))


def _fitted_era(receipts: list[Row], constants: Constants, era: Era, step: float) -> Era:
    """Copies of the logits by all receipts of eras that sample alike; hidden copies by those of the same forward."""
    chosen = era
    for name in ("sampling_copies", "hidden_copies"):
        alike = [other.since for other in constants.eras if getattr(other, name) == getattr(era, name)]
        tried = []
        for k in range(-3, 4):
            value = getattr(chosen, name) * (1 + step * k)
            eras = tuple(e._replace(**{name: value}) if e.since in alike else e for e in constants.eras)
            tried.append((_activation_error(receipts, constants._replace(eras=eras)), abs(k), value))
        chosen = chosen._replace(**{name: min(tried)[2]})
    return chosen


def _activation_error(receipts: list[Row], constants: Constants) -> float:
    """GiB over all receipts: of the activation peak where it is printed, else of all that the pool leaves to explain."""
    error = 0.0
    for row in receipts:
        if row.activation is not None:
            told = overheads(row.shape, row.run, constants).activation.best / GIB
            error += abs(told - row.activation)
        elif row.kv is not None and row.weights is not None:
            told = overheads(row.shape, row.run, constants).total.best / GIB
            error += abs(told - (row.usable - row.weights - row.kv))
    return error


def left_out(receipts: list[Row]) -> list[float]:
    """Relative pool errors with constants fitted without any receipt of the same model."""
    errors = []
    for model in sorted({row.model for row in receipts}):
        constants = fit([row for row in receipts if row.model != model])
        errors += [
            planned(row, row.weights, constants).error
            for row in receipts
            if row.model == model and row.kv is not None and row.weights is not None
        ]
    return errors


def medians(receipts: list[Row]) -> list[str]:
    """What the other constants are read from: non-torch by era and ranks, and MiB of one captured graph."""
    found: dict[str, list[float]] = {}
    for row in receipts:
        era = max(era.since for era in CONSTANTS.eras if era.since <= row.run.version)
        where = f"since {era[0]}.{era[1]}"
        if row.non_torch is not None and row.run.pipeline_parallel_size == 1:
            link = "nvlink" if row.run.nvlink else "pcie"
            found.setdefault(f"{where}, tp{row.run.tensor_parallel_size} {link}: non-torch GiB", []).append(
                row.non_torch
            )
        if row.graphs is not None:
            found.setdefault(f"{where}: MiB a graph", []).append(1024 * row.graphs / graph_count(row.run))
    return [f"{name} {statistics.median(values):.2f} ({len(values)})" for name, values in sorted(found.items())]


def summary(errors: list[float]) -> tuple[float, float]:
    """Median and 95th percentile of the absolute errors."""
    sizes = sorted(abs(error) for error in errors)
    return statistics.median(sizes), sizes[min(len(sizes) - 1, -(-len(sizes) * 95 // 100) - 1)]


def report(title: str, outcomes: list[Outcome], *, lines: bool) -> bool:
    """Prints one line a receipt and the sums; whether all three promises hold."""
    print(f"{title}: pool in GiB")
    if lines:
        for outcome in sorted(outcomes, key=lambda one: -abs(one.error)):
            row = outcome.row
            where = f"{row.model} on {row.gpu}, vLLM {row.run.version[0]}.{row.run.version[1]}"
            parallel = f" tp{row.run.tensor_parallel_size} pp{row.run.pipeline_parallel_size}"
            mark = " " if outcome.covered else "!"
            print(
                f" {mark}{where + parallel:58} planned {outcome.planned:7.2f} [{outcome.low:7.2f}, {outcome.high:7.2f}] "
                f"reported {row.kv:7.2f}  {outcome.error:+7.2%}"
            )
    for name, part in (
        ("other sources", [one for one in outcomes if not one.row.source.endswith(ONE_CAMPAIGN)]),
        ("all", outcomes),
    ):
        median, tail = summary([one.error for one in part])
        coverage = sum(one.covered for one in part) / len(part)
        print(f"  {name}: {len(part)} receipts, median {median:.2%}, p95 {tail:.2%}, in the interval {coverage:.0%}")
    return median <= MEDIAN and tail <= TAIL and coverage >= COVERAGE


def main(argv: list[str] | None = None) -> int:
    """0 when fitted, or when the check holds; 1 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare the constants in use with all receipts")
    parser.add_argument("--quiet", action="store_true", help="sums only")
    args = parser.parse_args(argv)
    receipts = rows()
    pools = [row for row in receipts if row.kv is not None and row.weights is not None]
    if args.check:
        given = [planned(row, row.weights) for row in pools if row.weights is not None]
        good = report("weights as printed", given, lines=not args.quiet)
        made = [outcome for row in pools if (outcome := planned_from_flags(row)) is not None]
        good &= report("from config.json, card, version and flags", made, lines=not args.quiet)
        return 0 if good else 1
    fitted = fit(receipts)
    for era in fitted.eras:
        print(era)
    print(fitted._replace(eras=()))
    print(f"activation: mean absolute error {_activation_error(receipts, CONSTANTS):.3f} GiB in sum before, "
          f"{_activation_error(receipts, fitted):.3f} after, {sum(row.activation is not None for row in receipts)} receipts")  # fmt: skip
    print("\n".join(medians(receipts)))
    median, tail = summary(left_out(receipts))
    print(f"pool, each model left out of its own fit: median {median:.2%}, 95th percentile {tail:.2%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
