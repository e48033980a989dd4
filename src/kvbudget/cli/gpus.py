"""`kvbudget gpus`: lists the cards that --gpu knows, with the memory that a process really sees on them."""

import argparse
import json

from kvbudget.cli.output import written_out
from kvbudget.errors import UnsupportedError
from kvbudget.planner.hardware.gpus import GPUS, Gpu, gpus_named, slices_of
from kvbudget.units import GIB

SCHEMA = "kvbudget.gpus/1"
EPILOG = """\
examples:
  kvbudget gpus                          # all of them
  kvbudget gpus h100                     # those with h100 in their name, and their MIG slices
  kvbudget plan ./model --gpu h100:8     # eight; --gpu h100-80gb:3g.40gb is a MIG slice
  kvbudget gpus --json

Memory is in GiB as drivers report it; the span holds what ECC and driver versions make of it. Speeds are those of data
sheets, dense. Of cards that share memory with the CPU (unified), what is free decides: MemAvailable in /proc/meminfo.
exit: 0; 2 usage, or no card of that name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("name", metavar="NAME", nargs="?", default="", help="only those with this in their name")
    parser.add_argument("--json", action="store_true", help=f"one JSON document (schema {SCHEMA})")


def run(args: argparse.Namespace) -> int:
    """Print the list. Raises UnsupportedError, naming near ones, when no card has that name."""
    chosen = _chosen(args.name)
    with written_out():
        if args.json:
            document = {"schema": SCHEMA, "gpus": [_document(key, gpu) for key, gpu in chosen.items()]}
            print(json.dumps(document, allow_nan=False))
        else:
            print("\n".join(_text(chosen, slices=bool(args.name))))
    return 0


def _chosen(word: str) -> dict[str, Gpu]:
    wanted = word.strip().lower()
    chosen = {key: gpu for key, gpu in GPUS.items() if wanted in key or wanted in gpu.name.lower()}
    if chosen:
        return chosen
    try:
        gpu, _ = gpus_named(word)
    except UnsupportedError as error:
        raise UnsupportedError(f"{word[:40]!r} is no card that is known", fix=error.fix) from None
    return {key: known for key, known in GPUS.items() if gpu.name.startswith(known.name)}


def _document(key: str, gpu: Gpu) -> dict[str, object]:
    return {
        "key": key,
        "name": gpu.name,
        "memory": {
            "bytes": gpu.memory_bytes,
            "low_bytes": gpu.low_bytes,
            "high_bytes": gpu.high_bytes,
            "source": gpu.source,
        },
        "memory_bandwidth_bytes_per_s": gpu.memory_bandwidth_bytes_per_s,
        "bf16_flops": gpu.bf16_flops,
        "fp8_flops": gpu.fp8_flops,
        "link": gpu.link,
        "unified": gpu.unified,
        "slices": {profile: part.memory_bytes for profile, part in slices_of(key).items()},
    }


def _text(chosen: dict[str, Gpu], *, slices: bool) -> list[str]:
    lines = [f"{'--gpu':<20} {'memory GiB':>10}  {'span':<17} {'':<10} {'TB/s':>5} {'16-bit':>7} {'fp8':>6} TFLOP/s"]
    for key, gpu in chosen.items():
        lines.append(_line(key, gpu))
        if slices:
            lines += [_line(f"{key}:{profile}", part) for profile, part in slices_of(key).items()]
    return lines


def _line(name: str, gpu: Gpu) -> str:
    span = f"{gpu.low_bytes / GIB:.2f}-{gpu.high_bytes / GIB:.2f}"
    speed = gpu.memory_bandwidth_bytes_per_s / 10**12
    shared = "  unified" if gpu.unified else ""
    return (
        f"{name:<20} {gpu.memory_bytes / GIB:>10.2f}  {span:<17} {gpu.source:<10} {speed:>5.2f} "
        f"{_tera(gpu.bf16_flops):>7} {_tera(gpu.fp8_flops):>6}{shared}"
    ).rstrip()


def _tera(flops: int) -> str:
    return f"{flops / 10**12:.0f}" if flops else "-"
