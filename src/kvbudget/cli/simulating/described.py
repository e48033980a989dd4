"""Decides what a run's document says of what was simulated: the load, the engine, the gate, and the command itself."""

import argparse
import shlex
from typing import Any

from kvbudget.cli.simulating.flags import add_flags
from kvbudget.simulate.outcome import Result
from kvbudget.simulate.policies import EngineFlags
from kvbudget.simulate.scenarios import Scenario
from kvbudget.simulate.settings import Settings

_HOW_IT_IS_TOLD = ("jobs", "markdown", "html", "json")  # they change no run


def described(
    args: argparse.Namespace, scenario: Scenario | None, settings: Settings, flags: EngineFlags, result: Result
) -> dict[str, Any]:
    """Plain JSON values, times in seconds: `load`, `engine`, `gate`, `clients`, `slo`. `flags`: the contender's."""
    sizes, bounds, clients, slo = settings.engine, settings.gate, settings.clients, settings.slo
    shared = settings.shared
    seconds = (result.last_arrival_ns - result.first_ns) / 1e9
    return {
        "load": {
            "source": scenario.name if scenario is not None else str(args.trace),
            "rate_scale": args.rate_scale,
            "requests": result.requests,
            "seconds": seconds,
            "requests_per_s": result.requests / seconds if seconds else None,
            "prompt_tokens_mean": result.prompt_tokens / result.requests if result.requests else None,
            "max_tokens": args.max_tokens,
            "seed": args.seed,
        },
        "engine": {
            "num_blocks": sizes.num_blocks,
            "usable_blocks": sizes.usable_blocks,
            "block_sizes": [group.block_size for group in sizes.layout.groups],
            "max_model_len": sizes.window,
            "max_num_seqs": sizes.max_num_seqs,
            "max_num_batched_tokens": sizes.max_num_batched_tokens,
            "prefix_caching": sizes.prefix_caching,
            "scheduling_policy": "priority" if sizes.by_priority else "fcfs",
            "async_scheduling": sizes.async_scheduling,
            "instances": settings.instances,
            "step_cost_ns": sizes.cost._asdict(),
            **flags._asdict(),
        },
        "gate": {
            "margin_blocks": bounds.margin_blocks,
            "queue_requests": bounds.queue_requests,
            "queue_tokens": bounds.queue_tokens,
            "queue_s": bounds.queue_ns / 1e9,
            "default_max_tokens": bounds.default_new_tokens,
            "tenants": sorted(bounds.tenants),
            "classes": [str(priority) for priority in sorted(bounds.classes)],
            **({} if shared is None else {"gates": shared.gates, "ledger_rtt_s": shared.rtt_ns / 1e9}),
        },
        "clients": {
            "patience_s": _seconds(clients.patience_ns),
            "retries": clients.retries,
            "deadline_s": _seconds(clients.deadline_ns),
        },
        "slo": {"ttft_s": _seconds(slo.ttft_ns), "gap_s": _seconds(slo.gap_ns)},
    }


def command_of(args: argparse.Namespace) -> str:
    """The command that gives these runs again: every flag that is not its default, but where reports go."""
    parser = argparse.ArgumentParser(add_help=False)
    add_flags(parser)
    words, told = ["kvbudget", "simulate"], set(_HOW_IT_IS_TOLD)
    for action in parser._actions:
        value = getattr(args, action.dest, action.default)
        seen = action.dest in told
        told.add(action.dest)
        if seen or value == action.default:
            continue
        if isinstance(value, bool):
            words.append(action.option_strings[0 if value else -1])
            continue
        for one in value if isinstance(value, list) else [value]:
            words += [action.option_strings[0], str(one)]
    return shlex.join(words)


def _seconds(value_ns: int | None) -> float | None:
    return None if value_ns is None else value_ns / 1e9
