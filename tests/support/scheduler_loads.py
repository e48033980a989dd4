"""Which loads an engine's scheduler is tried with: named ones, each for what it is named after, and drawn ones.

The same for the same name or seed. What a load is: scheduler_cases.py.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from scheduler_cases import STATES, Load, layout_of

Rng = random.Random
Settings = dict[str, Any]
Request = dict[str, Any]

MOST_STEPS = 2000  # some loads never end: two requests that take each other's blocks for ever
DEFAULTS: Settings = {
    "groups": [["full", 0, 16]], "num_blocks": 1025, "max_num_batched_tokens": 8192, "max_num_seqs": 256,
    "max_model_len": 8192, "watermark": 0.0, "prefix_caching": True, "scheduling_policy": "fcfs",
    "reserve_full_isl": True, "prefix_retention_interval": 0, "long_prefill_token_threshold": 0,
    "async_scheduling": False, "prefix_id_tokens": 512,
    "step_cost": {"base": 5_500_000, "prefill": 50_000, "decode": 20_000, "ctx": 44},
}  # fmt: skip


class Scenario(NamedTuple):
    """Settings that differ from the defaults, and how one request after the other is drawn."""

    settings: Settings
    trace: Callable[[Rng], Iterator[Request]]


def named_loads() -> list[Load]:
    """One load for each scenario."""
    return [
        {
            "name": name,
            "settings": {**DEFAULTS, **scenario.settings},
            "trace": list(scenario.trace(random.Random(scenario.trace.__name__))),
            "most_steps": MOST_STEPS,
        }
        for name, scenario in SCENARIOS.items()
    ]


def drawn_loads(count: int, first_seed: int = 0) -> list[Load]:
    """`count` loads, of each family in turn."""
    families = list(FAMILIES)
    return [draw(first_seed + number // len(families), families[number % len(families)]) for number in range(count)]


def _request(number: int, arrival_ns: int, prompt: int, output: int, max_tokens: int, **more: Any) -> Request:
    return {
        "id": f"r{number:02}", "arrival_ns": arrival_ns, "prompt_tokens": prompt, "output_tokens": output,
        "max_tokens": max_tokens, "prefix_ids": [], **more,
    }  # fmt: skip


def _arrivals(rng: Rng, count: int, gap_ms: int) -> Iterator[tuple[int, int]]:
    now_ns = 0
    for number in range(count):
        now_ns += int(rng.expovariate(1 / (gap_ms * 10**6)))
        yield number, now_ns


def _calm(rng: Rng) -> Iterator[Request]:
    for number, now_ns in _arrivals(rng, 16, 120):
        yield _request(number, now_ns, rng.randint(20, 400), rng.randint(8, 40), 128)


def _storm(rng: Rng) -> Iterator[Request]:
    """Answers are twice as long as the prompts: what was let in does not fit for long."""
    for number, now_ns in _arrivals(rng, 20, 25):
        yield _request(number, now_ns, rng.randint(16, 120), rng.randint(60, 160), 180)


def _talks(rng: Rng) -> Iterator[Request]:
    """Over a few system prompts; later turns go on from earlier ones."""
    fresh, talks = 100, [[1, 2], [3], [1, 2, 4]]
    for number, now_ns in _arrivals(rng, 24, 90):
        ids = [*rng.choice(talks), *range(fresh, fresh + rng.randint(0, 2))]
        fresh += 2
        talks.append(ids)
        prompt = 512 * len(ids) + rng.randint(-200, 180)
        yield _request(number, now_ns, prompt, rng.randint(4, 30), 32, prefix_ids=ids[: -(-prompt // 512)])


def _longer_than_a_window(rng: Rng) -> Iterator[Request]:
    for number, now_ns in _arrivals(rng, 12, 60):
        yield _request(number, now_ns, rng.choice([40, 200, 700, 1500]), rng.randint(20, 90), 100)


def _longer_than_a_step(rng: Rng) -> Iterator[Request]:
    for number, now_ns in _arrivals(rng, 12, 70):
        yield _request(number, now_ns, rng.choice([60, 900, 2600, 5000]), rng.randint(10, 40), 50)


def _ranked(rng: Rng) -> Iterator[Request]:
    for number, now_ns in _arrivals(rng, 20, 30):
        rank = rng.choice([-1, 0, 5, 5, 10])
        yield _request(number, now_ns, rng.randint(30, 160), rng.randint(40, 120), 150, priority=rank)


def _all_at_once(rng: Rng) -> Iterator[Request]:
    for number in range(20):
        yield _request(number, 0, rng.randint(5, 90), rng.randint(5, 40), 50, priority=number % 3)


def _given_up(rng: Rng) -> Iterator[Request]:
    """While they wait, while they are computed, and after they are done."""
    for request in _storm(rng):
        if rng.random() < 0.6:
            request["abort_ns"] = request["arrival_ns"] + rng.randint(0, 900) * 10**6
        yield request


def _said_again(rng: Rng) -> Iterator[Request]:
    """The same few prompts; the pool has no room for all of them, so what was used last stays."""
    for number, now_ns in _arrivals(rng, 30, 60):
        one = rng.randint(1, 6)
        yield _request(number, now_ns, 96 + 16 * one, rng.randint(2, 20), 20, prefix_ids=[7, one, one, one])


_TIGHT: Settings = {"num_blocks": 97, "max_model_len": 512}
_RANKED: Settings = {**_TIGHT, "scheduling_policy": "priority", "max_num_seqs": 16}
_SHARED: Settings = {"num_blocks": 513, "max_model_len": 6144}
_STATES: Settings = {"num_blocks": 129, "max_model_len": 6144}
_LONG: Settings = {"max_num_batched_tokens": 1024, "max_num_seqs": 64, "max_model_len": 6144}
_SLIDING: Settings = {
    "num_blocks": 385, "max_num_batched_tokens": 256, "max_num_seqs": 64, "max_model_len": 2048
}  # fmt: skip
_ASYNC: Settings = {"async_scheduling": True}
_FULL = ["full", 0, 16]


def _groups(*groups: list[Any]) -> Settings:
    return {"groups": list(groups)}


SCENARIOS: dict[str, Scenario] = {
    "no pressure": Scenario({}, _calm),
    "preemption storm": Scenario(_TIGHT, _storm),
    "preemption storm, asynchronous": Scenario(_TIGHT | _ASYNC, _storm),
    "preemption storm, watermark": Scenario(_TIGHT | {"watermark": 0.05}, _storm),
    "preemption storm, first chunk is enough": Scenario(
        _TIGHT | {"reserve_full_isl": False, "max_num_batched_tokens": 64, "max_num_seqs": 16}, _storm
    ),
    "given up": Scenario(_TIGHT, _given_up),
    "given up, asynchronous": Scenario(_TIGHT | _ASYNC, _given_up),
    "sent again": Scenario({"num_blocks": 41, "max_model_len": 320, "prefix_id_tokens": 48}, _said_again),
    "shared prefixes": Scenario(_SHARED, _talks),
    "shared prefixes, no cache": Scenario(_SHARED | {"prefix_caching": False}, _talks),
    "shared prefixes, windows": Scenario(
        _SHARED | {"num_blocks": 1281} | _groups(["swa", 1024, 16], ["swa", 1024, 16], _FULL), _talks
    ),
    "shared prefixes, windows, all kept": Scenario(
        _SHARED | {"num_blocks": 1025, "prefix_retention_interval": None} | _groups(["swa", 1024, 16], _FULL), _talks
    ),
    "shared prefixes, chunks": Scenario(_SHARED | {"num_blocks": 1025} | _groups(["chunked", 1024, 16], _FULL), _talks),
    "shared prefixes, states": Scenario(_STATES | _groups(*[["mamba", 0, 256]] * 3, ["full", 0, 256]), _talks),
    "shared prefixes, states put aside": Scenario(
        _STATES | {"max_num_batched_tokens": 2048} | _groups(["mamba2", 0, 256], ["full", 0, 256]), _talks
    ),
    "windows": Scenario(_SLIDING | _groups(["swa", 128, 16], _FULL), _longer_than_a_window),
    "windows, asynchronous": Scenario(
        _SLIDING | _ASYNC | _groups(*[["swa", 128, 16]] * 3, _FULL), _longer_than_a_window
    ),
    "long prompts": Scenario(_LONG, _longer_than_a_step),
    "long prompts, none fills a step": Scenario(_LONG | {"long_prefill_token_threshold": 200}, _longer_than_a_step),
    "priorities": Scenario(_RANKED, _ranked),
    "priorities, asynchronous": Scenario(_RANKED | _ASYNC, _ranked),
    "priorities, all at once, four at a time": Scenario(_RANKED | {"max_num_seqs": 4}, _all_at_once),
}


def draw(seed: int, family: str) -> Load:
    """A load of that family (see FAMILIES), the same for the same seed. The engine would start with its pool."""
    rng = random.Random(f"{family} {seed}")
    block = rng.choice([8, 16, 16, 32])
    settings: Settings = {
        **DEFAULTS,
        "max_num_batched_tokens": rng.choice([48, 128, 256, 1024]),
        "max_num_seqs": rng.choice([4, 16, 48]),
        "max_model_len": rng.choice([320, 512, 1000]),
        "prefix_id_tokens": rng.choice([24, 32, 48, 64]),
        "groups": [["full", 0, block]],
    }
    FAMILIES[family](rng, settings, block)
    if not settings["prefix_caching"]:
        _one_state_each(settings)
    settings["max_num_seqs"] = min(settings["max_num_seqs"], settings["max_num_batched_tokens"])
    needed = layout_of(settings).blocks_for(settings["max_model_len"])
    settings["num_blocks"] = 1 + needed + int(needed * rng.choice([0, 0.1, 0.3, 0.8, 2]))
    return {
        "name": f"{family} {seed}",
        "settings": settings,
        "trace": _trace(rng, settings),
        "most_steps": MOST_STEPS,
    }


def _one_state_each(settings: Settings) -> None:
    """Without a prefix cache vLLM makes a state's block as long as the model's window; there is nothing to retain."""
    longest = settings["max_model_len"]
    settings["groups"] = [
        [kind, window, longest if kind in STATES else size] for kind, window, size in settings["groups"]
    ]
    if any(kind in STATES for kind, _, _ in settings["groups"]):
        settings["prefix_retention_interval"] = 0


def _window(rng: Rng) -> int:
    return rng.choice([17, 40, 64, 100, 128])


def _no_cache(rng: Rng, settings: Settings, block: int) -> None:
    settings["prefix_caching"] = False


def _sliding(rng: Rng, settings: Settings, block: int) -> None:
    settings["groups"] = [["swa", _window(rng), block]]
    _retention(rng, settings, block)


def _sliding_and_full(rng: Rng, settings: Settings, block: int) -> None:
    settings["groups"] = [["swa", _window(rng), block]] * rng.randint(1, 3) + [["full", 0, block]]
    rng.shuffle(settings["groups"])
    settings["prefix_caching"] = rng.random() < 0.8
    _retention(rng, settings, block)


def _two_windows(rng: Rng, settings: Settings, block: int) -> None:
    settings["groups"] = [["swa", 40, block], ["swa", 100, block]]
    if rng.random() < 0.5:
        settings["groups"].append(["full", 0, block])
    _retention(rng, settings, block)


def _unequal_blocks(rng: Rng, settings: Settings, block: int) -> None:
    other = rng.choice([["full", 0, 32], ["full", 0, 32], ["swa", _window(rng), 32]])
    settings["groups"] = [["swa", _window(rng), 16]] * rng.randint(1, 2) + [other]
    _retention(rng, settings, 32)


def _chunked(rng: Rng, settings: Settings, block: int) -> None:
    settings["groups"] = [["chunked", rng.choice([64, 128, 192]), block]]
    if rng.random() < 0.75:
        settings["groups"].append(["full", 0, block])
    settings["prefix_caching"] = rng.random() < 0.8


def _mamba(rng: Rng, settings: Settings, block: int) -> None:
    block = rng.choice([32, 64])
    settings["prefix_caching"] = rng.random() < 0.8
    settings["groups"] = [[rng.choice([*STATES]), 0, block]] * rng.randint(1, 3) + [["full", 0, block]]
    _retention(rng, settings, block)


def _mamba_and_sliding(rng: Rng, settings: Settings, block: int) -> None:
    block = rng.choice([32, 64])
    settings["groups"] = [[rng.choice([*STATES]), 0, block], ["swa", _window(rng), block], ["full", 0, block]][
        : rng.randint(2, 3)
    ]
    _retention(rng, settings, block)


def _priority(rng: Rng, settings: Settings, block: int) -> None:
    settings["scheduling_policy"] = "priority"
    settings["prefix_caching"] = rng.random() < 0.7


def _asynchronous(rng: Rng, settings: Settings, block: int) -> None:
    settings["async_scheduling"] = True
    rng.choice([_no_cache, _sliding_and_full, _chunked, _mamba, _priority, _watermark, _nothing])(rng, settings, block)


def _watermark(rng: Rng, settings: Settings, block: int) -> None:
    settings["watermark"] = rng.choice([0.02, 0.05, 0.1])


def _first_chunk_only(rng: Rng, settings: Settings, block: int) -> None:
    settings["reserve_full_isl"] = False
    settings["max_num_batched_tokens"] = rng.choice([48, 64, 128])


def _long_prefill(rng: Rng, settings: Settings, block: int) -> None:
    _threshold(rng, settings, block)
    rng.choice([_mamba, _nothing])(rng, settings, block)


def _threshold(rng: Rng, settings: Settings, block: int) -> None:
    settings["long_prefill_token_threshold"] = rng.choice([16, 40, 100])


def _everything(rng: Rng, settings: Settings, block: int) -> None:
    groups = rng.choice([_no_cache, _sliding_and_full, _two_windows, _mamba, _mamba_and_sliding, _chunked])
    settings["async_scheduling"] = rng.random() < 0.5
    for change in (_watermark, _first_chunk_only, _priority, _threshold):
        if rng.random() < 0.4:
            change(rng, settings, block)
    groups(rng, settings, block)


def _odd_sizes(rng: Rng, settings: Settings, block: int) -> None:
    """What no model has, and a mistake by one would show in."""
    block = rng.choice([1, 4, 16])
    window, chunk = rng.choice([1, 2, block, block + 1, 2 * block + 1]), rng.choice([block, 4 * block, 24, 100])
    kinds = rng.choice([["full"], ["swa"], ["swa", "full"], ["chunked", "full"], ["chunked", "swa", "full"]])
    settings["groups"] = [[kind, {"swa": window, "chunked": chunk}.get(kind, 0), block] for kind in kinds]
    settings["prefix_id_tokens"] = rng.choice([1, 7, block, 512])
    settings["max_num_batched_tokens"] = rng.choice([8, 33, 100])
    settings["max_num_seqs"] = rng.choice([1, 2, 7])
    settings["max_model_len"] = rng.choice([50, 100, 301])
    settings["async_scheduling"] = rng.random() < 0.5
    settings["prefix_caching"] = rng.random() < 0.8


def _nothing(rng: Rng, settings: Settings, block: int) -> None:
    pass


def _retention(rng: Rng, settings: Settings, block: int) -> None:
    settings["prefix_retention_interval"] = rng.choice([0, 0, None, 2 * block, 6 * block])


FAMILIES: dict[str, Callable[[Rng, Settings, int], None]] = {
    "full": _nothing,
    "no cache": _no_cache,
    "sliding": _sliding,
    "sliding and full": _sliding_and_full,
    "two windows": _two_windows,
    "unequal blocks": _unequal_blocks,
    "chunked": _chunked,
    "states": _mamba,
    "states and windows": _mamba_and_sliding,
    "priority": _priority,
    "asynchronous": _asynchronous,
    "watermark": _watermark,
    "first chunk only": _first_chunk_only,
    "long prefill": _long_prefill,
    "odd sizes": _odd_sizes,
    "everything": _everything,
}


def _trace(rng: Rng, settings: Settings) -> list[Request]:
    longest = settings["max_model_len"]
    id_tokens = settings["prefix_id_tokens"]
    gap_ns = rng.choice([1, 5, 15, 40]) * 10**6
    trace: list[Request] = []
    now_ns = 0
    for number in range(rng.randint(15, 35)):
        if rng.random() < 0.8:  # the others arrive at the same moment
            now_ns += int(rng.expovariate(1 / gap_ns))
        prompt = min(1 + int(rng.lognormvariate(4.3, 0.9)), longest - 1)
        ids = [rng.randint(1, 2)]
        while rng.random() < 0.75:
            ids.append(10 * len(ids) + rng.randint(0, 1))
        if trace and rng.random() < 0.2:  # sent again, or the next turn of the same talk
            earlier = rng.choice(trace)
            prompt = min(longest - 1, earlier["prompt_tokens"] + rng.choice([0, 0, 30, 90]))
            ids = earlier["prefix_ids"] + [100 + number] * 3
        ids = ids[: -(-prompt // id_tokens)]
        output = min(1 + int(rng.lognormvariate(3.0, 0.8)), 150)
        request: Request = {
            "id": f"r{number:02}",
            "arrival_ns": now_ns,
            "prompt_tokens": prompt,
            "output_tokens": output,
            "max_tokens": rng.choice([output, output, output + 40, max(1, output - 5), 1, longest]),
            "prefix_ids": ids,
        }
        if settings["scheduling_policy"] == "priority":
            request["priority"] = rng.randint(0, 2)
        if rng.random() < 0.1:
            request["abort_ns"] = now_ns + rng.randint(0, 200) * 10**6
        trace.append(request)
    return trace
