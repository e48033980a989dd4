"""Decides how a page has something simulated: by our own command, in a process of its own, one at a time, bounded.

Never inside the gate's process: a simulation is minutes of one core, and the data plane shares its interpreter lock.
"""

import asyncio
import contextlib
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from kvbudget.errors import BadValueError, KvbudgetError
from kvbudget.gate.gate import Gate
from kvbudget.simulate.scenarios import SCENARIOS
from kvbudget.units import parse_length

LONGEST_S = 120.0
LARGEST_TRACE = 8 * 1024 * 1024
MOST_REQUESTS = 5000
_POLICIES = ("none", "worst-case", "trajectory", "learned", "oracle")
_MOST_RATES, _MOST_POLICIES = 8, 5
_NUMBERS = {"num_blocks": 10**7, "block_size": 65536, "max_num_seqs": 10**5, "max_model_len": 10**8,
            "requests": MOST_REQUESTS, "seed": 2**31}  # fmt: skip
_MOST_SEQS = 10**5
_SAID = 400  # characters of what the command says when it fails


class BusyError(KvbudgetError):
    """One simulation runs already."""

    code = "busy"


class Simulator:
    """Runs `kvbudget simulate`, one at a time."""

    def __init__(self) -> None:
        self._busy = False

    async def asked(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """What a page asks for: {"scenario": ..., or "trace": text; "policies": [...], "rates": [...], ...}.

        Raises BadValueError for what is none of it, BusyError while another runs.
        """
        flags = flags_of(wanted)
        trace = wanted.get("trace")
        return await self.run(flags, trace.encode() if isinstance(trace, str) else None)

    async def run(self, flags: Sequence[str], trace: bytes | None) -> dict[str, Any]:
        """The document of one command; `trace` becomes its --trace."""
        if self._busy:
            raise BusyError("a simulation runs already", fix="wait until it is done")
        self._busy = True
        try:
            with tempfile.TemporaryDirectory(prefix="kvbudget-") as folder:
                if trace is not None:
                    path = Path(folder) / "trace.jsonl"
                    await asyncio.to_thread(path.write_bytes, trace)
                    flags = [*flags, "--trace", str(path)]
                document = await _document(flags)
                return {**document, "command": document["command"].replace(f"{folder}/", "")}
        finally:
            self._busy = False


async def _document(flags: Sequence[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "kvbudget", "simulate", *flags, "--jobs", "1", "--json"]
    if (nice := shutil.which("nice")) is not None:
        command = [nice, "-n", "10", *command]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(LONGEST_S):
            out, err = await process.communicate()
    except TimeoutError:
        raise BadValueError(
            f"the simulation took more than {LONGEST_S:.0f} s", fix="ask for fewer requests, rates or policies"
        ) from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    try:
        document = orjson.loads(out)
    except orjson.JSONDecodeError:
        said = err.decode(errors="replace").strip().removeprefix("kvbudget simulate: ")
        raise BadValueError(said[-_SAID:] or "the simulation said nothing", fix="change what it names") from None
    if (refused := document.get("error")) is not None:
        raise BadValueError(refused["message"][-_SAID:], fix=refused["fix"])
    runs = document.get("runs", [document])
    return {"schema": "kvbudget.simulation/1", "runs": [_short(run) for run in runs], "command": runs[0]["command"]}


def _short(run: Mapping[str, Any]) -> dict[str, Any]:
    """What the pages draw of one run."""
    kept = ("policy", "requests", "finished", "refused", "timed_out", "preemptions", "goodput_tokens_per_s", "wait_s",
            "slo_fraction", "ttft_s", "pool_use_mean", "oracle_ratio", "wasted_tokens", "refusals")  # fmt: skip
    return {name: run.get(name) for name in kept} | {"rate": run.get("sweep", {}).get("rate-scale", 1.0)}


def flags_of(wanted: Mapping[str, Any]) -> list[str]:
    """The command's flags. Raises BadValueError for a field that is unknown or out of range."""
    unknown = sorted(wanted.keys() - {"scenario", "trace", "policies", "rates", *_NUMBERS})
    if unknown:
        raise BadValueError(f"{unknown[0][:40]}: no field of a simulation", fix="leave it out")
    flags = [*_load(wanted), "--policy", ",".join(_policies(wanted.get("policies", ["none", "learned"])))]
    for name, most in _NUMBERS.items():
        value = wanted.get(name)
        if value is None:
            continue
        if type(value) is not int or not 0 <= value <= most:
            raise BadValueError(f"{name}: {str(value)[:40]} is out of range", fix=f"a whole number up to {most:,}")
        flags += [{"requests": "--max-requests"}.get(name, f"--{name.replace('_', '-')}"), str(value)]
    if "requests" not in wanted:
        flags += ["--max-requests", "500"]
    return [*flags, *_rates(wanted.get("rates", [1.0]))]


def _load(wanted: Mapping[str, Any]) -> list[str]:
    scenario, trace = wanted.get("scenario"), wanted.get("trace")
    if isinstance(trace, str) and scenario is None:
        if not 0 < len(trace) <= LARGEST_TRACE:
            raise BadValueError(f"trace: {len(trace):,} characters", fix=f"1 to {LARGEST_TRACE:,} of them")
        return []
    if trace is not None or not isinstance(scenario, str) or scenario not in SCENARIOS:
        raise BadValueError(
            f"scenario: {str(scenario)[:40]!r} is none", fix=f"one of {', '.join(SCENARIOS)}; or the text of a trace"
        )
    return ["--scenario", scenario]


def _policies(given: object) -> list[str]:
    """Our policies, and vLLM's own flags by name."""
    names = given if isinstance(given, list) else []
    for name in names:
        flag = isinstance(name, str) and re.fullmatch(r"max-num-queued-(reqs|tokens)=[0-9]{1,9}", name)
        if not flag and name not in _POLICIES:
            raise BadValueError(
                f"policies: {str(name)[:40]!r} is none",
                fix=f"{', '.join(_POLICIES)}, max-num-queued-reqs=N or max-num-queued-tokens=N",
            )
    if not 1 <= len(names) <= _MOST_POLICIES or len(set(names)) != len(names):
        raise BadValueError("policies: give 1 to 5, each once", fix='such as ["none", "learned"]')
    return names


def _rates(given: object) -> list[str]:
    rates = given if isinstance(given, list) else []
    good = [rate for rate in rates if type(rate) in (int, float) and 0.01 <= rate <= 100]
    if not 1 <= len(rates) <= _MOST_RATES or len(good) != len(rates):
        raise BadValueError("rates: give 1 to 8 numbers from 0.01 to 100", fix="such as [0.8, 1, 1.3, 1.7]")
    return ["--sweep", f"rate-scale={','.join(f'{rate:g}' for rate in rates)}"]


def what_if_flags(gate: Gate) -> list[str]:
    """A simulated engine of this gate's pool and limits. Raises BadValueError where several groups share the pool."""
    groups = gate.ledger.layout.groups
    if len(groups) != 1 or gate.ledger.usable_blocks < 1:
        raise BadValueError(
            "what if: known for one pool of plain blocks, this engine has several kinds of cache or none that is known",
            fix="simulate an access log with the budget: kvbudget simulate --trace access.log --config kvbudget.toml",
        )
    return [
        "--trace-format", "gate-log", "--policy", gate.config.policy.value,
        "--num-blocks", str(gate.ledger.usable_blocks + 1), "--block-size", str(groups[0].block_size),
        "--max-num-seqs", str(gate.config.max_num_seqs or _MOST_SEQS), "--max-model-len", str(gate.max_context),
        "--margin-blocks", str(gate.ledger.margin_blocks),
    ]  # fmt: skip


def changed_flags(gate: Gate, wanted: Mapping[str, Any]) -> list[str]:
    """The limits that a "what if" changes. Raises BadValueError."""
    most = {"max_num_seqs": _MOST_SEQS, "max_context": gate.max_context}
    flags = {"max_num_seqs": "--max-num-seqs", "max_context": "--max-model-len"}
    if not wanted or wanted.keys() - most.keys():
        raise BadValueError("what if: name max_num_seqs, max_context, or both", fix='such as {"max_num_seqs": 12}')
    found = []
    for name, given in wanted.items():
        value = parse_length(given.strip(), name) if isinstance(given, str) else given
        if type(value) is not int or not 1 <= value <= most[name]:
            raise BadValueError(
                f"{name}: {str(given)[:40]} is out of range", fix=f"a whole number from 1 to {most[name]:,}"
            )
        found += [flags[name], str(value)]
    return found
