"""Decides which runs a command asks for, does them, in parallel where there are several, and compares each with
`oracle`."""

import argparse
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from kvbudget.cli.reshaping import reshaping_of
from kvbudget.cli.simulating.described import command_of, described
from kvbudget.cli.simulating.flags import completed, engine_flags_of, settings_of
from kvbudget.edge.traces.read import TraceOptions, apply_options, load_trace
from kvbudget.errors import BadValueError
from kvbudget.simulate.load import TraceRequest
from kvbudget.simulate.policies import ORACLE, contender, contenders
from kvbudget.simulate.run import simulate
from kvbudget.simulate.scenarios import Scenario, scenario_named

_MOST_RUNS = 2000
_MOST_JOBS = 64
_SERIAL_RUNS = 2
# Flags that --sweep may change, and how their values are read.
SWEPT: dict[str, Callable[[str], Any]] = {
    "rate-scale": float,
    "max-requests": int,
    "max-tokens": int,
    "length-scale": float,
    "seed": int,
    "num-blocks": int,
    "block-size": int,
    "max-model-len": str,
    "max-num-seqs": int,
    "max-num-batched-tokens": int,
    "instances": int,
    "gates": int,
    "ledger-rtt": float,
    "watermark": float,
    "max-num-queued-reqs": int,
    "max-num-queued-tokens": int,
    "margin-blocks": int,
    "queue-requests": int,
    "queue-tokens": str,
    "queue-seconds": float,
    "patience": float,
    "retries": int,
    "deadline": float,
    "slo-ttft": float,
    "slo-gap": float,
    "scenario": str,
}


class Job(NamedTuple):
    """One run: the flags of its point of the sweep, and the policy's word."""

    args: argparse.Namespace
    point: tuple[tuple[str, Any], ...]
    policy: str


Document = dict[str, Any]


def documents_of(args: argparse.Namespace, advanced: Callable[[int, int], None]) -> list[Document]:
    """A document for each point of the sweep and each policy, in their order.

    `advanced` hears (runs done, runs in all). Raises BadValueError before anything runs, if anything is wrong.
    """
    jobs = [Job(at, point, policy) for point, at in _points(args) for policy in _policies(at)]
    if len(jobs) > _MOST_RUNS:
        raise BadValueError(f"sweep: {len(jobs)} runs, at most {_MOST_RUNS} are done", fix="give fewer values")
    found = _done(jobs, _processes(args, len(jobs)), advanced)
    command = command_of(args)
    return [{**document, "command": command} for document in _compared(jobs, found)]


def run_job(job: Job) -> Document:
    """Do one run; everything it needs is made here, so that a process can."""
    args = job.args
    scenario = _scenario_of(args)
    settings = settings_of(args, scenario)
    who = contender(job.policy, engine_flags_of(args))
    result = simulate(load_of(args, scenario), settings, who, random.Random(args.seed))  # noqa: S311 - repeatable
    document = result.document()
    document |= described(args, scenario, settings, who.flags, result)
    document["seed"] = args.seed
    if job.point:
        document["sweep"] = dict(job.point)
    if scenario is not None:
        document["scenario"] = scenario.name
    return document


def load_of(args: argparse.Namespace, scenario: Scenario | None) -> Iterable[TraceRequest]:
    """The requests, ordered by arrival. Raises BadValueError for a file that is none or has none.

    A scenario that is not reshaped is made as it is used, so that a long one needs no memory.
    """
    options = reshaping_of(args)
    if scenario is None:
        return load_trace(args.trace, args.trace_format, options)
    made = scenario.load(random.Random(args.seed), args.max_requests or scenario.requests)  # noqa: S311 - repeatable
    if options == TraceOptions(max_requests=args.max_requests, seed=args.seed):
        return made
    return apply_options(list(made), replace(options, max_requests=None))


def _scenario_of(args: argparse.Namespace) -> Scenario | None:
    if (args.trace is None) == (args.scenario is None):
        raise BadValueError("give either --trace FILE or --scenario NAME", fix="see kvbudget simulate --help")
    return None if args.scenario is None else scenario_named(args.scenario)


def _points(args: argparse.Namespace) -> Iterator[tuple[tuple[tuple[str, Any], ...], argparse.Namespace]]:
    """Every combination of swept values, with the flags that hold there. Checks each of them."""
    axes = []
    for text in args.sweep:
        name, equals, values = text.partition("=")
        name = name.removeprefix("--")
        if name == "policy":
            raise BadValueError(
                "sweep: policies are no axis of it", fix=f"use --policy {values[:60] or 'none,learned'}"
            )
        if name not in SWEPT or not equals:
            raise BadValueError(f"sweep: {text[:60]!r} is not NAME=A,B,C", fix=f"NAME is one of {', '.join(SWEPT)}")
        axes.append([(name, _swept(name, value)) for value in values.split(",")])
    for point in itertools.product(*axes):
        changed = {name.replace("-", "_"): value for name, value in point}
        at = completed(argparse.Namespace(**{**vars(args), **changed}))
        at.run = None  # a function of this module's caller: not for other processes
        settings_of(at, _scenario_of(at))
        yield point, at


def _swept(name: str, value: str) -> Any:
    try:
        return SWEPT[name](value)
    except ValueError:
        raise BadValueError(f"sweep: {name}={value[:40]} is not a value of --{name}", fix="see --help") from None


def _policies(at: argparse.Namespace) -> list[str]:
    """The policies' words, and `oracle` after them, unless it is there."""
    names = [one.name for one in contenders(at.policy, engine_flags_of(at))]
    return names if ORACLE in names else [*names, ORACLE]


def _processes(args: argparse.Namespace, jobs: int) -> int:
    if args.jobs is not None and not 1 <= args.jobs <= _MOST_JOBS:
        raise BadValueError(f"jobs: {args.jobs} is not between 1 and {_MOST_JOBS}")
    if args.jobs is None and jobs <= _SERIAL_RUNS:
        return 1  # starting processes would take as long
    import os

    return min(args.jobs or len(os.sched_getaffinity(0)), jobs)


def _done(jobs: Sequence[Job], processes: int, advanced: Callable[[int, int], None]) -> list[Document]:
    found: list[Document] = []
    advanced(0, len(jobs))
    if processes == 1:
        for job in jobs:
            found.append(run_job(job))
            advanced(len(found), len(jobs))
        return found
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(processes) as pool:
        try:
            for document in pool.map(run_job, jobs):
                found.append(document)
                advanced(len(found), len(jobs))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found


def _compared(jobs: Sequence[Job], found: Sequence[Document]) -> list[Document]:
    """Each with its goodput beside that of `oracle`; this one itself only where it was asked for."""
    best = {
        job.point: document["goodput_tokens_per_s"]
        for job, document in zip(jobs, found, strict=True)
        if job.policy == ORACLE
    }
    kept = []
    for job, document in zip(jobs, found, strict=True):
        if best[job.point] > 0:
            document["oracle_ratio"] = document["goodput_tokens_per_s"] / best[job.point]
        if job.policy != ORACLE or ORACLE in [name.strip() for name in job.args.policy.split(",")]:
            kept.append(document)
    return kept
