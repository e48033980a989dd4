"""How many requests the gate admits behind Envoy per CPU second of its own, beside Envoy alone and a bare processor.

All traffic stays on 127.0.0.1 and every run is bounded. The processor has a core for itself; Envoy, mock engine and
load share another, so that Envoy's figure is a rough one. Stacks take turns in interleaved rounds; medians of all.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "proxy"), str(HERE.parents[1] / "tests" / "support")]

import peers  # noqa: E402
import rig  # noqa: E402
import stacks  # noqa: E402

from real_envoy import example, program  # noqa: E402

CONNECTIONS = 64
BODY_BYTES = 2_000
GOAL = 2_000
Change = Callable[[dict[str, Any]], None]
Figures = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Running:
    """`processor`: the process whose CPU is counted, None for Envoy alone."""

    name: str
    port: int
    envoy: int | None
    processor: int | None


def main() -> int:
    """0 where the goal is reached, 1 where not, 2 when the rig itself cannot run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one run (default 2)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    cores = rig.choose_cores()
    figures: dict[str, list[Figures]] = {}
    try:
        with tempfile.TemporaryDirectory(prefix="bench-extproc-") as name, ExitStack() as stack:
            rig.build()
            engine_port = stack.enter_context(rig.mock_engine(cores.load, Path(name)))
            running = [stack.enter_context(one) for one in _stacks(engine_port, cores, Path(name))]
            for number in range(args.rounds):
                turn = number % len(running)
                for one in running[turn:] + running[:turn]:
                    figures.setdefault(one.name, []).append(_measured(one, cores, args.seconds))
                print(f"round {number + 1} of {args.rounds} done", file=sys.stderr)
    except rig.RigError as error:
        print(error, file=sys.stderr)
        return 2
    rows = {name: _medians(seen) for name, seen in figures.items()}
    print(json.dumps(rows, indent=1) if args.json else _table(rows))
    return 0 if max(row["requests_per_cpu_s"] for name, row in rows.items() if name.startswith("gate")) >= GOAL else 1


def _stacks(engine_port: int, cores: rig.Cores, folder: Path) -> Iterator[Any]:
    yield _alone(engine_port, cores, folder)
    yield _serving(engine_port, cores, folder)
    yield _processing("bare processor", None, {}, engine_port, cores, folder)
    yield _processing("gate", None, {}, engine_port, cores, folder)
    yield _processing("gate, answers' headers not shown", _skipping, {}, engine_port, cores, folder)
    yield _processing("gate, whole answers shown", _showing, {}, engine_port, cores, folder)
    if (stacks.COMPILED / ".ready").exists():
        compiled = {"PYTHONPATH": str(stacks.COMPILED)}
        yield _processing("gate, compiled", None, compiled, engine_port, cores, folder)


@contextmanager
def _alone(engine_port: int, cores: rig.Cores, folder: Path) -> Iterator[Running]:
    port = rig.free_port()
    with _envoy("Envoy alone", peers._envoy_config(engine_port, port), port, cores, folder) as pid:
        yield Running("Envoy alone", port, pid, None)


@contextmanager
def _serving(engine_port: int, cores: rig.Cores, folder: Path) -> Iterator[Running]:
    """The gate as a proxy of its own."""
    with stacks.gate(engine_port, cores.proxy, folder) as stack:
        yield Running("kvbudget serve, no Envoy", stack.port, None, stack.pid)


@contextmanager
def _processing(
    name: str, change: Change | None, environment: dict[str, str], engine_port: int, cores: rig.Cores, folder: Path
) -> Iterator[Running]:
    log, port = folder / f"{name}.log", rig.free_port()
    command = [sys.executable, str(HERE / "bare_processor.py"), str(engine_port)]
    if name.startswith("gate"):
        # fmt: off
        command = [
            sys.executable, "-m", "kvbudget", "extproc",
            "--backend", f"http://127.0.0.1:{engine_port}", "--tokenizer", "bound",
            "--pool-blocks", str(rig.NUM_GPU_BLOCKS), "--block-size", str(rig.BLOCK_SIZE),
            "--max-context", str(rig.MAX_MODEL_LEN), "--max-num-seqs", "20000",
            "--grpc-port", "0", "--admin-port", "0", "--json",
        ]
        # fmt: on
    with rig.running(command, cores.proxy, log=log, pipe=True, environment=environment) as process:
        line = rig.first_line(process.stdout, process, name)
        grpc_port = int(json.loads(line)["gate"].rpartition(":")[2] if name.startswith("gate") else line)
        with _envoy(name, example(port, grpc_port, change), port, cores, folder) as pid:
            yield Running(name, port, pid, process.pid)


@contextmanager
def _envoy(name: str, config: dict[str, Any], port: int, cores: rig.Cores, folder: Path) -> Iterator[int]:
    path, log = folder / f"envoy-{port}.json", folder / f"envoy-{port}.log"
    path.write_text(json.dumps(config))
    words = ["-c", str(path), "--concurrency", "1", "--log-level", "error", "--base-id", str(port)]
    with rig.running([str(program()), *words], cores.load, log=log) as process:
        rig.wait_until_answering(port, process, name, log)
        yield process.pid


def _skipping(settings: dict[str, Any]) -> None:
    settings["processing_mode"]["response_header_mode"] = "SKIP"


def _showing(settings: dict[str, Any]) -> None:
    settings["processing_mode"]["response_body_mode"] = "FULL_DUPLEX_STREAMED"
    settings["processing_mode"]["response_trailer_mode"] = "SEND"


def _measured(one: Running, cores: rig.Cores, seconds: float) -> Figures:
    """Requests per CPU second of the processor and of Envoy, and the median latency in microseconds."""
    processes = (one.processor, one.envoy)
    before = [0.0 if pid is None else rig.cpu_seconds(pid) for pid in processes]
    load = rig.offer(one.port, cores.load, rig.Offer(CONNECTIONS, seconds, BODY_BYTES))
    after = [0.0 if pid is None else rig.cpu_seconds(pid) for pid in processes]
    if load.bad or load.lost or not load.answers:
        raise rig.RigError(f"{one.name}: {load.answers} answers, {load.bad} bad, {load.lost} lost")
    own, envoy = after[0] - before[0], after[1] - before[1]
    return (
        0 if one.processor is None else load.answers / own,
        0 if one.envoy is None else load.answers / envoy,
        load.p50_us,
    )


def _medians(seen: list[Figures]) -> dict[str, float]:
    own, envoy, latency = (round(statistics.median(column)) for column in zip(*seen, strict=True))
    return {"requests_per_cpu_s": own, "envoy_requests_per_cpu_s": envoy, "p50_us": latency}


def _table(rows: dict[str, dict[str, float]]) -> str:
    lines = [f"{'':34} {'requests/CPU s':>15} {'Envoy req/CPU s':>16} {'p50 µs':>9}"]
    for name, row in rows.items():
        figures = [f"{value:,}" if value else "" for value in row.values()]
        lines.append(f"{name:34} {figures[0]:>15} {figures[1]:>16} {figures[2]:>9}")
    return "\n".join([*lines, f"goal: {GOAL:,} admitted per CPU second of the gate's process"])


if __name__ == "__main__":
    sys.exit(main())
