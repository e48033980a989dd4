"""Decides which flags `kvbudget simulate` has, and what they mean as settings of a simulation."""

import argparse
from pathlib import Path
from typing import Any

from kvbudget.cli.reshaping import add_reshaping
from kvbudget.edge.traces.read import FORMATS
from kvbudget.errors import BadConfigError, BadValueError
from kvbudget.gate.tenants.settings import ClassLimits, TenantLimits
from kvbudget.pool.groups import uniform_layout
from kvbudget.pool.prefix import Sharing
from kvbudget.simulate.cost import DEFAULT_COST, parse_step_cost
from kvbudget.simulate.policies import EngineFlags, checked_watermark, known_policies
from kvbudget.simulate.scenarios import BLOCK_SIZE, SCENARIOS, Scenario
from kvbudget.simulate.settings import ClientHabits, EngineSizes, GateBounds, Gates, Settings, Slo
from kvbudget.units import Tokens, parse_length

_LARGEST_BLOCK = 1 << 20  # tokens
_MOST_BLOCKS = 10**9
_MOST = 10**12
_MOONCAKE_BIN_S = 3.0
# What holds where neither a flag nor --config says anything else.
DEFAULTS: dict[str, Any] = {
    "block_size": BLOCK_SIZE,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
    "policy": "learned",
    "margin_blocks": 0,
    "queue_requests": 1024,
    "queue_tokens": None,
    "queue_seconds": 30.0,
    "default_max_tokens": "2048",
    "slo_ttft": 5.0,
}
_KINDS = {
    "policy": str,
    "queue_tokens": str,
    "queue_seconds": float,
    "default_max_tokens": str,
    "max_model_len": str,
    "slo_ttft": float,
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    load = parser.add_argument_group("load")
    load.add_argument("--trace", type=Path, metavar="FILE", help="CSV or JSON lines, as for replay")
    load.add_argument("--trace-format", choices=FORMATS, help="default: told from the first line")
    load.add_argument("--scenario", metavar="NAME", help=f"made from --seed: {', '.join(SCENARIOS)}")
    add_reshaping(
        load,
        max_requests="only the first N; of a scenario, N in all",
        max_tokens="what every client declares (default: what the load says, or none)",
        spread="scatter equal stamps over S seconds",
    )
    load.add_argument(
        "--dequantise",
        dest="spread_arrivals",
        action="store_const",
        const=_MOONCAKE_BIN_S,
        help="the same with 3 s, to which the Mooncake conversation trace is rounded",
    )
    load.add_argument("--seed", type=int, default=0, help="scenario, spreading, clients' pauses (default 0)")
    engine = parser.add_argument_group("engine")
    engine.add_argument(
        "--config",
        metavar="FILE",
        help="pool, groups of caches, limits, tenants and classes of this kvbudget.toml; flags given here win",
    )
    engine.add_argument("--num-blocks", type=int, metavar="N", help="KV blocks, the null block included as in vLLM")
    engine.add_argument("--block-size", type=int, metavar="N", help="tokens per block (default 16)")
    engine.add_argument("--max-model-len", metavar="N", help="window: 8192, 8k (default: what the pool holds)")
    engine.add_argument("--max-num-seqs", type=int, metavar="N", help="running at once (default 256)")
    engine.add_argument("--max-num-batched-tokens", type=int, metavar="N", help="tokens per step (default 8192)")
    engine.add_argument(
        "--step-cost",
        metavar="NS",
        help="base:5500000,prefill:50000,decode:20000,context:44, the default: nanoseconds of a step, for a prompt "
        "token, a decoding sequence, a token of context",
    )
    engine.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="by the load's hash_ids; a preempted request may find its own blocks again (default on)",
    )
    engine.add_argument(
        "--prefix-id-tokens", type=int, default=512, metavar="N", help="prompt tokens of a hash id (default 512)"
    )
    engine.add_argument(
        "--scheduling-policy", choices=("fcfs", "priority"), default="fcfs", help="vLLM's (default fcfs)"
    )
    engine.add_argument(
        "--async-scheduling",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="vLLM's: the next step is scheduled while one runs (default off; vLLM 0.32 turns it on where it can)",
    )
    engine.add_argument("--instances", type=int, default=1, metavar="N", help="engines, each behind a gate (default 1)")
    engine.add_argument(
        "--gates", type=int, default=1, metavar="N", help="before the engine, which share its pool (default 1)"
    )
    engine.add_argument(
        "--ledger-rtt",
        type=float,
        default=1.0,
        metavar="MS",
        help="from several gates to the ledger that they share, and back (default 1)",
    )
    engine.add_argument(
        "--watermark", type=float, default=0.0, metavar="X", help="vLLM's, for all policies (default 0)"
    )
    engine.add_argument("--max-num-queued-reqs", type=int, metavar="N", help="vLLM's, for all policies (default: none)")
    engine.add_argument(
        "--max-num-queued-tokens", type=int, metavar="N", help="vLLM's, for all policies (default: none)"
    )
    gate = parser.add_argument_group("admission")
    gate.add_argument(
        "--policy",
        metavar="LIST",
        help=f"one or several by comma: {', '.join(known_policies())}, or vLLM flags (default learned)",
    )
    gate.add_argument("--margin-blocks", type=int, metavar="N", help="kept back on purpose (default 0)")
    gate.add_argument("--queue-requests", type=int, metavar="N", help="most that wait (default 1024)")
    gate.add_argument("--queue-tokens", metavar="N", help="most tokens that wait (default: twice the pool)")
    gate.add_argument("--queue-seconds", type=float, metavar="S", help="longest wait (default 30)")
    gate.add_argument("--default-max-tokens", metavar="N", help="promised where no max_tokens is declared (2048)")
    clients = parser.add_argument_group("clients")
    clients.add_argument(
        "--patience",
        type=float,
        default=30.0,
        metavar="S",
        help="they leave without a first token (default 30; 0: never)",
    )
    clients.add_argument("--retries", type=int, metavar="N", help="after a refusal (default 0, or the scenario's)")
    clients.add_argument("--deadline", type=float, metavar="S", help="sent as x-kvbudget-deadline-ms (default: none)")
    clients.add_argument("--slo-ttft", type=float, metavar="S", help="first token within S (default 5)")
    clients.add_argument("--slo-gap", type=float, default=1.0, metavar="S", help="no later gap over S (default 1)")
    runs = parser.add_argument_group("runs and reports")
    runs.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="NAME=A,B,C",
        help="one run for each value of a flag; repeatable, then every combination",
    )
    runs.add_argument("--jobs", type=int, metavar="N", help="processes (default: as many as there are cores)")
    runs.add_argument("--markdown", metavar="FILE", help="a report as Markdown")
    runs.add_argument("--html", metavar="FILE", help="a report with charts, one file")
    runs.add_argument("--json", action="store_true", help="one JSON document on stdout")


def completed(args: argparse.Namespace) -> argparse.Namespace:
    """Every flag with its value, but for the pool that a scenario brings: what was given, else what --config says, else
    the default. `layout`: the groups of the file, None without any. `tenants` and `classes`: the limits that the file
    has for them; `sharing`: its prefix_credit. Raises InputError.
    """
    values = {**vars(args), "layout": None, "tenants": {}, "classes": {}, "sharing": Sharing.SCHEDULED}
    from_file: dict[str, Any] = {}
    if args.config is not None:
        from kvbudget.edge.budget.file import read_budget
        from kvbudget.planner.budget.record import gate_settings, gate_tables, layout_of

        budget = read_budget(args.config)
        found = gate_settings(budget)
        from_file = {name: found[name] for name in DEFAULTS if name in found}
        if "pool_blocks" in found:
            blocks = _checked("pool_blocks", found["pool_blocks"], args.config)
            from_file["num_blocks"] = blocks + 1  # the null block
        if "max_context" in found:
            from_file["max_model_len"] = str(found["max_context"])
        # As `kvbudget serve` takes them; the reader has judged both.
        values["tenants"] = {name: TenantLimits(**table) for name, table in gate_tables(budget, "tenants").items()}
        values["classes"] = {int(name): ClassLimits(**table) for name, table in gate_tables(budget, "classes").items()}
        if found.get("prefix_credit", "auto") in tuple(Sharing):
            values["sharing"] = Sharing(str(found["prefix_credit"]))
        layout = layout_of(budget)
        values["layout"] = layout if args.block_size is None else None
    for name in (*DEFAULTS, "num_blocks", "max_model_len"):
        if values[name] is None:
            values[name] = _checked(name, from_file[name], args.config) if name in from_file else DEFAULTS.get(name)
    return argparse.Namespace(**values)


def _checked(name: str, value: Any, path: str) -> Any:
    """A value of the file, of the kind that the flag takes. Raises BadConfigError."""
    kind = _KINDS.get(name, int)
    if kind is str and isinstance(value, int):
        value = str(value)
    if kind is float and isinstance(value, int):
        value = float(value)
    if type(value) is not kind:
        raise BadConfigError(
            f"{path[-200:]}: [gate]: {name} {str(value)[:40]!r} is no value of its flag", fix="kvbudget check FILE"
        )
    return value


def settings_of(args: argparse.Namespace, scenario: Scenario | None) -> Settings:
    """What `completed` flags say, the scenario's pool where there is none. Raises BadValueError."""
    num_blocks = args.num_blocks if args.num_blocks is not None else scenario.num_blocks if scenario else None
    if num_blocks is None:
        raise BadValueError(
            "num-blocks: the size of the pool is not given",
            fix="give --num-blocks N, as the engine's log or kvbudget plan says, or --scenario",
        )
    for name, value, most in (
        ("num-blocks", num_blocks, _MOST_BLOCKS),
        ("block-size", args.block_size, _LARGEST_BLOCK),
    ):
        if not 1 <= value <= most:
            raise BadValueError(f"{name}: {value} is not between 1 and {most:,}")
    for name in ("max_num_seqs", "max_num_batched_tokens", "prefix_id_tokens"):
        if not 1 <= getattr(args, name) <= _MOST:
            raise BadValueError(f"{name.replace('_', '-')}: {getattr(args, name)} is not between 1 and 10^12")
    window = None
    if args.max_model_len is not None:
        window = int(parse_length(args.max_model_len, "--max-model-len"))
        if window < 2:
            raise BadValueError(f"max-model-len: {window} leaves no room for a prompt and an answer")
    elif scenario is not None and args.num_blocks is None and args.layout is None:
        window = scenario.max_model_len
    retries = args.retries if args.retries is not None else scenario.retries if scenario else 0
    rtt_ns = _ns(args.ledger_rtt / 1e3, "ledger-rtt")
    return Settings(
        engine=EngineSizes(
            args.layout or uniform_layout(args.block_size),
            num_blocks,
            window,
            args.max_num_seqs,
            args.max_num_batched_tokens,
            args.enable_prefix_caching,
            args.prefix_id_tokens,
            args.scheduling_policy == "priority",
            args.async_scheduling,
            parse_step_cost(args.step_cost) if args.step_cost is not None else DEFAULT_COST,
        ),
        gate=GateBounds(
            margin_blocks=args.margin_blocks,
            queue_requests=args.queue_requests,
            queue_tokens=None if args.queue_tokens is None else parse_length(args.queue_tokens, "--queue-tokens"),
            queue_ns=_ns(args.queue_seconds, "queue-seconds"),
            default_new_tokens=Tokens(parse_length(args.default_max_tokens, "--default-max-tokens")),
            sharing=args.sharing,
            tenants=args.tenants,
            classes=args.classes,
        ),
        clients=ClientHabits(
            patience_ns=_ns(args.patience, "patience") or None,
            retries=retries,
            deadline_ns=None if args.deadline is None else _ns(args.deadline, "deadline"),
        ),
        slo=Slo(_ns(args.slo_ttft, "slo-ttft"), _ns(args.slo_gap, "slo-gap")),
        instances=args.instances,
        shared=None if args.gates == 1 else Gates(args.gates, rtt_ns),
    )


def engine_flags_of(args: argparse.Namespace) -> EngineFlags:
    """vLLM's admission flags, which hold for every policy. Raises BadValueError."""
    for name in ("max_num_queued_reqs", "max_num_queued_tokens"):
        value = getattr(args, name)
        if value is not None and not 0 <= value <= _MOST:
            raise BadValueError(f"{name.replace('_', '-')}: {value} is not between 0 and 10^12")
    return EngineFlags(args.max_num_queued_reqs, args.max_num_queued_tokens, checked_watermark(args.watermark))


def _ns(seconds: float, name: str) -> int:
    if not 0 <= seconds <= 10**9:  # nan is neither
        raise BadValueError(f"{name}: {seconds} is not a time from 0 s on")
    return round(seconds * 1e9)
