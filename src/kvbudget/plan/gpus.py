"""How much memory well-known GPUs have, as the driver reports it to a process: less than the name says.

Figures in bytes from GiB as printed in public start-up logs and out-of-memory messages; ECC and driver versions move
them by up to 0.2 GiB. `measured`: seen in such a message; `estimated`: taken from cards of the same size.
"""

from typing import NamedTuple

from kvbudget.errors import UnsupportedError
from kvbudget.units import GIB, Bytes


class Gpu(NamedTuple):
    """One card. `memory_bytes` as a process sees it; `source` says how well that is known."""

    name: str
    memory_bytes: Bytes
    source: str


def _gpu(name: str, gib: float, source: str = "measured") -> Gpu:
    return Gpu(name, Bytes(int(gib * GIB)), source)


GPUS = {
    "h100-80gb": _gpu("H100 80GB", 79.19),
    "a100-40gb": Gpu("A100 40GB", Bytes(42298834944), "measured"),
    "a100-80gb": _gpu("A100 80GB", 79.25, "estimated"),
    "h200": _gpu("H200", 139.8, "estimated"),
    "b200": _gpu("B200", 178.3, "estimated"),
    "l40s": _gpu("L40S", 44.42),
    "l4": _gpu("L4", 22.03, "estimated"),
    "a10g": _gpu("A10G", 21.98),
    "t4": _gpu("T4", 14.56, "estimated"),
    "rtx-3090": _gpu("RTX 3090", 23.58),
    "rtx-4090": _gpu("RTX 4090", 23.55),
    "rtx-5090": _gpu("RTX 5090", 31.36, "estimated"),
}
_ALIASES = {"h100": "h100-80gb", "h100-sxm": "h100-80gb", "a100": "a100-80gb", "3090": "rtx-3090", "4090": "rtx-4090",
            "5090": "rtx-5090", "rtx3090": "rtx-3090", "rtx4090": "rtx-4090", "rtx5090": "rtx-5090"}  # fmt: skip


def gpu_named(text: str) -> Gpu:
    """The card called `text` in any case, with spaces or underscores. Raises UnsupportedError naming those we know."""
    key = text.strip().lower().replace(" ", "-").replace("_", "-")
    gpu = GPUS.get(_ALIASES.get(key, key))
    if gpu is None:
        raise UnsupportedError(
            f"--gpu {text[:40]!r} is unknown", fix=f"known are {', '.join(GPUS)}; or give --gpu-memory 79.19GiB"
        )
    return gpu
