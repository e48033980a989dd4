"""Throws damaged configs and wild flags at the planner: it may refuse them as bad input, and nothing else.

    python scripts/fuzz_plan.py --count 100000 --seed 1     # one line a kind of failure; exit 1 when there is one
    python scripts/fuzz_plan.py --seed 1 --case 4711        # that case again, with its traceback

A case takes one of the real configs (bench/planners/configs, scripts/data/fuzz_configs.json), changes no to four places
of it, and plans it with random flags; half of the changes are mild, so that about a third of the cases reach a plan. Right are: InputError, or a plan that is consistent in itself and can be
written as JSON and explained. Each case depends on seed and number alone. A failure is made smaller before it is shown.
"""

import argparse
import copy
import json
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kvbudget.engines.flags import AUTO_LENGTH, EngineFlags, Speculation
from kvbudget.errors import InputError
from kvbudget.model.read import model_from_config
from kvbudget.planner.build import make_plan
from kvbudget.planner.document import plan_json
from kvbudget.planner.explain import explain
from kvbudget.planner.hardware.gpus import gpu_named
from kvbudget.planner.request import Amount, Plan, PlanRequest
from kvbudget.planner.workload.lengths import Lengths
from kvbudget.units import GIB, Bytes, Tokens

ROOT = Path(__file__).resolve().parents[1]
DAMAGES_OF_A_CASE = (0, 1, 1, 1, 1, 2, 2, 3, 4)
SLOW_S = 5.0  # a plan takes a millisecond; this is a loop that follows a number of the config
ENGINES = ("vllm@0.32",) * 8 + ("vllm@0.19", "vllm@0.10", "vllm@0.15", "vllm@0.21", "vllm@0.6", "sglang", "tgi", "trtllm", "llamacpp")  # fmt: skip

Config = dict[str, Any]
Place = tuple[str | int, ...]


class Case(NamedTuple):
    """One input: the damaged config, and everything else of the request."""

    config: Config
    given: dict[str, Any]
    flags: dict[str, Any]
    drafted: bool


class Failure(NamedTuple):
    """What went wrong, where (equal kinds are counted together), and the input."""

    kind: str
    case: Case
    number: int


def seeds() -> dict[str, Config]:
    """The configs that are damaged, by name."""
    found: dict[str, Config] = json.loads((ROOT / "scripts" / "data" / "fuzz_configs.json").read_text())
    for path in sorted((ROOT / "bench" / "planners" / "configs").glob("*.json")):
        found[path.stem] = json.loads(path.read_text())
    return found


# ---------------------------------------------------------------------------------------------------------- inputs


def case_of(seed: int, number: int, configs: dict[str, Config]) -> Case:
    """Case `number` of a run."""
    chance = random.Random(f"{seed}/{number}")
    config = copy.deepcopy(configs[chance.choice(sorted(configs))])
    for _ in range(chance.choice(DAMAGES_OF_A_CASE)):
        place = chance.choice(list(places(config)) or [()])
        if place:
            chance.choice((another_size, chance.choice(DAMAGES)))(chance, config, place, configs)
    return Case(config, request_fields(chance), engine_flags(chance), drafted=chance.random() < 0.05)


def places(value: object, here: Place = ()) -> Iterator[Place]:
    """Every place inside a config, by its keys; of a list only the first and last few."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*here, key)
            yield from places(inner, (*here, key))
    elif isinstance(value, list):
        for index in [*range(min(2, len(value))), *range(max(2, len(value) - 1), len(value))]:
            yield (*here, index)
            yield from places(value[index], (*here, index))


def holder(config: Config, place: Place) -> Any:
    """What holds the last key of `place`."""
    found: Any = config
    for key in place[:-1]:
        found = found[key]
    return found


def odd_number(chance: random.Random, old: object) -> object:
    """Another number: near, far, negative, not whole, not a number at all."""
    base = old if isinstance(old, int | float) and not isinstance(old, bool) else chance.randint(1, 5000)
    return chance.choice(
        (
            0, -1, 1, 2, 3, -base, base * 2, base + 1, max(0, base - 1), base / 2, base / 3, float(base), 10**6, 10**9,
            2**31, 2**63, 10**18, 10**40, -(10**18), 1e308, float("nan"), float("inf"), float("-inf"), True,
        )
    )  # fmt: skip


def odd_value(chance: random.Random) -> object:
    """Something of another type."""
    deep: object = {}
    for _ in range(60):
        deep = {"text_config": deep}
    return chance.choice(
        (
            None, True, False, "", "8", "full_attention", "sliding_attention", "linear_attention", "\x00\ud800", "é" * 300,
            [], {}, [1], [None], [[]], ["full_attention"] * 3, {"a": 1}, [0] * 5000, [-1, 2], deep, 1.5, -3, "1e9", "float32",
        )
    )  # fmt: skip


def another_size(chance: random.Random, config: Config, place: Place, configs: dict[str, Config]) -> None:
    """A number that could be right; what is no number is left."""
    within = holder(config, place)
    old = within[place[-1]]
    if isinstance(old, int) and not isinstance(old, bool):
        within[place[-1]] = chance.choice((old * 2, old // 2, old + 1, old - 1, 1, 2, 4, 64, 100, 1024))
    elif isinstance(old, bool):
        within[place[-1]] = not old


def delete(chance: random.Random, config: Config, place: Place, configs: dict[str, Config]) -> None:
    """The key or entry is gone."""
    del holder(config, place)[place[-1]]


def renumber(chance: random.Random, config: Config, place: Place, configs: dict[str, Config]) -> None:
    """Any number in its place."""
    within = holder(config, place)
    within[place[-1]] = odd_number(chance, within[place[-1]])


def retype(chance: random.Random, config: Config, place: Place, configs: dict[str, Config]) -> None:
    """Something of another type in its place."""
    holder(config, place)[place[-1]] = copy.deepcopy(odd_value(chance))


def nest(chance: random.Random, config: Config, place: Place, configs: dict[str, Config]) -> None:
    """The same, wrapped in a list or an object."""
    within = holder(config, place)
    old = within[place[-1]]
    within[place[-1]] = chance.choice(([old], [old] * 3, {"text_config": old}, {str(place[-1]): old}))


def swap(chance: random.Random, config: Config, place: Place, configs: dict[str, Config]) -> None:
    """Two values change places."""
    other = chance.choice(list(places(config)))
    one, two = holder(config, place), holder(config, other)
    if place[: len(other)] == other or other[: len(place)] == place:
        return  # one holds the other: that would be a circle
    one[place[-1]], two[other[-1]] = two[other[-1]], one[place[-1]]


def resize(chance: random.Random, config: Config, place: Place, configs: dict[str, Config]) -> None:
    """A longer or shorter list or word."""
    old = holder(config, place)[place[-1]]
    if isinstance(old, list) and old:
        size = chance.choice((0, 1, len(old) - 1, len(old) + 1, 3 * len(old)))
        holder(config, place)[place[-1]] = [old[index % len(old)] for index in range(size)]
    elif isinstance(old, str) and old:
        holder(config, place)[place[-1]] = chance.choice((old[1:], old + old, old.upper(), old + "x"))
    else:
        renumber(chance, config, place, configs)


def graft(chance: random.Random, config: Config, place: Place, configs: dict[str, Config]) -> None:
    """A key of another model: sometimes its model_type, sometimes a window, states, experts, ..."""
    other = configs[chance.choice(sorted(configs))]
    key = "model_type" if chance.random() < 0.2 else chance.choice(sorted(other))
    target = holder(config, place)
    if isinstance(target, dict) and key in other:
        target[key] = copy.deepcopy(other[key])


DAMAGES: tuple[Callable[[random.Random, Config, Place, dict[str, Config]], None], ...] = (
    delete, renumber, renumber, retype, nest, swap, resize, graft,
)  # fmt: skip


def engine_flags(chance: random.Random) -> dict[str, Any]:
    """A few flags; most of the values are sane, some are not."""
    choices: dict[str, tuple[Any, ...]] = {
        "max_model_len": (
            1,
            16,
            4096,
            8192,
            8192,
            32768,
            131072,
            1048576,
            AUTO_LENGTH,
            AUTO_LENGTH,
            0,
            -5,
            10**12,
            10**15,
        ),
        "max_num_seqs": (1, 4, 32, 256, 512, 1024, 0, -1, 10**9),
        "max_num_batched_tokens": (1, 512, 2048, 4096, 8192, 16384, 0, 10**9),
        "block_size": (1, 16, 16, 32, 64, 64, 128, 256, 7, 0, -16, 10**9),
        "dtype": ("auto", "bfloat16", "float16", "float32", "int3", ""),
        "kv_cache_dtype": ("auto", "fp8", "fp8_e4m3", "fp8_ds_mla", "bfloat16", "nvfp4", "q8_0", "q4_0", "float99"),
        "tensor_parallel_size": (2, 2, 2, 4, 4, 8, 3, 16, 0, -2, 10**6),
        "pipeline_parallel_size": (1, 2, 3, 4, 0, 200),
        "decode_context_parallel_size": (1, 2, 4, 8, 0),
        "gpu_memory_utilization": (0.1, 0.5, 0.9, 1.0, 0.0, -1.0, 1.5, float("nan")),
        "async_scheduling": (True, False),
        "enable_prefix_caching": (True, False),
        "num_gpu_blocks_override": (1, 2, 100, 10**6, 0, -3, 10**12),
        "disable_hybrid_kv_cache_manager": (True,),
        "mamba_cache_dtype": ("float32", "bfloat16", "auto", "int8"),
        "mamba_ssm_cache_dtype": ("float32", "bfloat16", "auto", "int8"),
        "enforce_eager": (True,),
        "pp_layer_partition": ((2, 2), (1, 3), (), (0, 4)),
        "speculation": tuple(
            Speculation(method, tokens)
            for method in ("mtp", "ngram", "eagle", "eagle3", "draft_model", "medusa", "deepseek_mtp", "?")
            for tokens in (1, 3, 1000)
        ),
    }
    return {
        name: chance.choice(choices[name]) for name in chance.sample(sorted(choices), chance.choice((0, 1, 1, 2, 3, 5)))
    }


def request_fields(chance: random.Random) -> dict[str, Any]:
    """Memory in one of its ways, and the workload sometimes."""
    given: dict[str, Any] = {"engine": chance.choice(ENGINES)}
    way = chance.random()
    if way < 0.5:
        given["kv_cache_memory"] = Bytes(chance.choice((24 * GIB, 400 * GIB, 3 * GIB // 2, 1, 0, 10**18)))
    elif way < 0.8:
        given["gpu"] = gpu_named(chance.choice(("h100", "l40s", "a100-80gb", "mi300x")))
        given["gpus"] = chance.choice((None, None, 1, 8, 8, 0))
    elif way < 0.95:
        given["gpu_memory"] = Bytes(chance.choice((24 * GIB, 80 * GIB, 1)))
        given["overhead"] = Bytes(GIB)
        given["activation"] = Bytes(GIB)
    if chance.random() < 0.3:
        given["weights"] = Amount(Bytes(chance.choice((0, GIB, 10**15))), "given", "--weights")
    if chance.random() < 0.3:
        given["prompt_lengths"] = Lengths(Tokens(100), Tokens(4000), Tokens(chance.choice((8000, 10**7))))
        given["output_lengths"] = Lengths(Tokens(1), None, Tokens(500))
    if chance.random() < 0.1:
        given["target_concurrency"] = chance.choice((1, 4, 100, 10**6, 0))
    return given


# --------------------------------------------------------------------------------------------------------- judging


def failure_of(case: Case) -> str:
    """The kind of failure, or nothing when all is well."""
    start = time.perf_counter()
    try:
        plan = planned(case)
        wrong = inconsistencies(plan)
        text = json.dumps(plan_json(plan), allow_nan=False)
        if not isinstance(json.loads(text), dict) or not all(isinstance(line, str) for line in explain(plan)):
            wrong.append("the document or the explanation is none")
    except InputError as refusal:
        wrong = [] if str(refusal) else ["an InputError without words"]
    except Exception as crash:
        return f"{type(crash).__name__} at {spot(crash)}"
    if time.perf_counter() - start > SLOW_S:
        wrong.append(f"took more than {SLOW_S:.0f} s")
    return wrong[0] if wrong else ""


def planned(case: Case) -> Plan:
    """The whole way from a parsed config to a plan."""
    model = model_from_config(case.config, "m")
    flags = EngineFlags(**case.flags)
    if case.drafted and flags.speculation is not None:
        flags = flags._replace(speculation=flags.speculation._replace(draft=model))
    return make_plan(PlanRequest(model=model, flags=flags, **case.given))


def inconsistencies(plan: Plan) -> list[str]:
    """What cannot be true of any pool."""
    pool, layout, memory = plan.pool, plan.stage.layout, plan.memory
    one_pool = plan.engine_name in ("vllm", "tgi")  # others may have pools of several sizes side by side
    asked = plan.engine_name == "llamacpp"  # its pool is what was asked for, it fits or not; states cost no cells
    rules = {
        "negative blocks": pool.num_blocks >= 0 and 0 <= pool.usable_blocks <= pool.num_blocks,
        "pool is not its blocks": not one_pool or pool.bytes == pool.num_blocks * layout.bytes_per_block,
        "pool is larger than its memory": pool.bytes <= max(0, memory.kv.bytes)
        or (asked and (not plan.fits or plan.settings.num_gpu_blocks_override is not None)),
        "a request takes no block": pool.blocks_per_request > 0 and (asked or layout.bytes_per_block > 0),
        "blocks of a request differ": pool.blocks_per_request == layout.blocks_for(pool.max_model_len),
        "negative tokens": pool.tokens >= 0 and pool.concurrency >= 0 and layout.bytes_per_token >= 0,
        "the longest request does not fit": pool.largest_max_model_len <= 0 or fits_at_the_longest(plan),
        "a longer request would fit": plan.fits is False or pool.blocks_per_request <= pool.num_blocks,
        "more requests than the pool holds": plan.ceilings.ceiling * pool.blocks_per_request <= pool.usable_blocks,
        "a percentile is negative": min(plan.ceilings.p50, plan.ceilings.p95, plan.ceilings.p99) >= 0,
        "negative weights": memory.weights.bytes >= 0,
        "layers are lost": sum(plan.request.model.kinds.values()) == len(plan.request.model.layers),
        "a finding without a fix": all(finding.message and finding.fix for finding in plan.findings),
        "a count that is none": all(
            type(number) is int for number in (pool.num_blocks, pool.usable_blocks, pool.bytes, pool.tokens)
        ),
    }
    return [name for name, holds in rules.items() if not holds]


def fits_at_the_longest(plan: Plan) -> bool:
    """Planned again: another length may have another batch, and blocks of another size. With a card's memory a longer
    batch also takes more of it for activation, so only a given pool must hold what is told."""
    request, longest = plan.request, plan.pool.largest_max_model_len
    if request.kv_cache_memory is None or longest == plan.pool.max_model_len:
        return True
    again = make_plan(request._replace(flags=request.flags._replace(max_model_len=longest))).pool
    return again.blocks_per_request <= max(again.checked_blocks, again.usable_blocks)


def spot(crash: Exception) -> str:
    """The last two functions of ours in the traceback."""
    frames = traceback.extract_tb(crash.__traceback__)
    ours = [frame for frame in frames if "kvbudget" in frame.filename] or frames
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(ours[-2:]))


def smaller(case: Case, kind: str, within_s: float = 20.0) -> Case:
    """The same failure with fewer keys and flags."""
    end = time.monotonic() + within_s
    shrunk = True
    while shrunk and time.monotonic() < end:
        shrunk = False
        for candidate in reductions(case):
            if time.monotonic() > end:
                break
            if failure_of(candidate) == kind:
                case, shrunk = candidate, True
                break
    return case


def reductions(case: Case) -> Iterator[Case]:
    """The case with one thing less."""
    for name in case.flags:
        yield case._replace(flags={key: value for key, value in case.flags.items() if key != name})
    for name in case.given:
        if name not in ("engine", "kv_cache_memory", "gpu", "gpu_memory"):
            yield case._replace(given={key: value for key, value in case.given.items() if key != name})
    for place in sorted(places(case.config), key=len):
        config = copy.deepcopy(case.config)
        delete(random.Random(0), config, place, {})
        yield case._replace(config=config)


def run(seed: int, numbers: range, configs: dict[str, Config], progress: Callable[[int], None]) -> dict[str, list[int]]:
    """Failures by kind: the numbers of their cases."""
    found: dict[str, list[int]] = {}
    for number in numbers:
        if kind := failure_of(case_of(seed, number, configs)):
            found.setdefault(kind, []).append(number)
        progress(number)
    return found


def main() -> int:
    """0 when the planner held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, help="one case alone, with its traceback")
    args = parser.parse_args()
    configs = seeds()
    if args.case is not None:
        case = case_of(args.seed, args.case, configs)
        print(json.dumps(case.config)[:4000], case.given, case.flags, sep="\n")
        print(failure_of(case) or "held")
        planned(case)
        return 0
    start = time.monotonic()

    def progress(number: int) -> None:
        if number % 10_000 == 9_999:
            print(f"{number + 1} cases, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)

    found = run(args.seed, range(args.count), configs, progress)
    print(f"{args.count} cases, seed {args.seed}, {time.monotonic() - start:.0f} s: {len(found)} kinds of failure")
    for kind, numbers in sorted(found.items(), key=lambda item: -len(item[1])):
        small = smaller(case_of(args.seed, numbers[0], configs), kind)
        print(f"\n{kind}: {len(numbers)} times, first --seed {args.seed} --case {numbers[0]}")
        print(f"  config {json.dumps(small.config)[:1500]}\n  given {small.given}\n  flags {small.flags}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
