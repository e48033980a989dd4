"""Decides which card a name means, how much of its memory a process sees, and how fast it is.

Accepted: any spelling of a known card (`H100`, `nvidia h100 80gb hbm3`, `rtx_4090`), a count (`h100:8`, `8x h100`,
`h100 x8`), and a MIG slice (`h100-80gb:3g.40gb`, or `NVIDIA-H100-80GB-HBM3-MIG-3g.40gb` as nodes are labelled). The
memory is what the driver reports, less than the name says: see `gpu_table`.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kvbudget.errors import BadValueError, UnsupportedError
from kvbudget.planner.hardware.gpu_table import ROWS, SLICES, SPELLINGS, Row
from kvbudget.units import GIB, Bytes, is_digits

MEASURED, ESTIMATED = "measured", "estimated"
_MAKERS = ("nvidia", "geforce", "tesla", "quadro", "amd", "instinct", "intel", "habana", "apple")
_SHARED = "shared"  # in time: the operator's label of a card of which every process sees the whole memory
_MOST_GPUS = 4096
_USUAL = ("h100-80gb", "h200", "a100-80gb", "l40s", "rtx-4090", "mi300x")  # named where nothing is near
_NEAR = 4  # how many names an error offers
_LEAST_LIKENESS = 0.5
_TIMES = "xX*\u00d7"


class Gpu(NamedTuple):
    """One card. `memory_bytes` as a process sees it; `source` says how well that is known, and it lies between
    `low_bytes` and `high_bytes`. Speeds are of the data sheet, dense; 0 is not known. `unified`: the memory is shared
    with the CPU, so what is free of it decides and not its size. `link`: how cards of one machine are usually joined.
    `mig_profile`: of a MIG slice, "" of a whole card.
    """

    name: str
    memory_bytes: Bytes
    source: str
    low_bytes: Bytes = Bytes(0)
    high_bytes: Bytes = Bytes(0)
    memory_bandwidth_bytes_per_s: int = 0
    bf16_flops: int = 0
    fp8_flops: int = 0
    link: str = "pcie"
    unified: bool = False
    mig_profile: str = ""


class _Cards(Mapping[str, Gpu]):
    """The known cards by key, each made when it is first asked for: a plan names one of them, or none."""

    def __init__(self) -> None:
        self._made: dict[str, Gpu] = {}

    def __getitem__(self, key: str) -> Gpu:
        if key not in self._made:
            row = next((row for row in ROWS if row[0] == key), None)
            if row is None:
                raise KeyError(key)
            self._made[key] = _gpu(row)
        return self._made[key]

    def __iter__(self) -> Iterator[str]:
        return (row[0] for row in ROWS)

    def __len__(self) -> int:
        return len(ROWS)

    def __contains__(self, key: object) -> bool:
        return any(row[0] == key for row in ROWS)


GPUS: Mapping[str, Gpu] = _Cards()


def gpu_named(text: str) -> Gpu:
    """The card, or slice of one, called `text`. Raises UnsupportedError naming near ones; a count is an error here."""
    gpu, count = gpus_named(text)
    if count is not None:
        raise BadValueError(f"--gpu {text[:40]!r} names {count} cards", fix="give one name, and --gpus N")
    return gpu


def gpus_named(text: str) -> tuple[Gpu, int | None]:
    """The card called `text` and how many of them, None where no count is given: `h100:8`, `8x h100`,
    `h100:3g.40gb:2`."""
    name, *parts = text.split(":")
    name, count = _uncounted(name, text)
    name, profile = _slice_in(name)
    key = _key_of(name, text)
    gpu = _slice(key, profile, text) if profile else GPUS[key]
    for part in parts:
        word = part.strip().lower()
        if not is_digits(word):
            gpu = _slice(key, word, text)
        elif count is not None:
            raise BadValueError(f"--gpu {text[:60]!r}: two counts", fix="write h100:8")
        else:
            count = _count(word, text)
    return gpu, count


def _uncounted(name: str, text: str) -> tuple[str, int | None]:
    """(name, count) of `2xH100`, `8 x h100`, `h100 x8`, `h100*8`. Behind a mark it must be a card's: `rtx4090`."""
    for mark in _TIMES:
        before, times, after = (part.strip() for part in name.partition(mark))
        if times and after and is_digits(before):
            return after, _count(before, text)
        before, times, after = (part.strip() for part in name.rpartition(mark))
        if times and is_digits(after) and _known(before):
            return before, _count(after, text)
    return name, None


def _slice_in(name: str) -> tuple[str, str]:
    """(card, profile) of `NVIDIA-A100-SXM4-40GB-MIG-1g.5gb`, the label that NVIDIA's GPU operator gives a node."""
    card, mark, profile = name.strip().lower().replace(" ", "-").partition("-mig-")
    return (card, profile) if mark else (name, "")


def slices_of(key: str) -> dict[str, Gpu]:
    """The MIG slices of the card with this key of GPUS, by profile; empty where it has none."""
    whole = GPUS[key]
    return {
        profile: whole._replace(
            name=f"{whole.name} MIG {profile}",
            memory_bytes=_bytes(gib),
            source=ESTIMATED,
            low_bytes=_bytes(gib - 0.25),
            high_bytes=_bytes(gib + 0.25),
            # memory and its bandwidth are cut alike, the compute units in sevenths
            memory_bandwidth_bytes_per_s=int(
                whole.memory_bandwidth_bytes_per_s * min(1.0, gib * GIB / whole.memory_bytes)
            ),
            bf16_flops=whole.bf16_flops * int(profile[0]) // _parts(key),
            fp8_flops=whole.fp8_flops * int(profile[0]) // _parts(key),
            link="pcie",
            mig_profile=profile,
        )
        for profile, gib in SLICES.get(_SLICED_LIKE.get(key, key), {}).items()
    }


_SLICED_LIKE = {
    "a100-80gb-pcie": "a100-80gb",
    "a100-40gb-pcie": "a100-40gb",
    "h100-pcie": "h100-80gb",
    "h800": "h100-80gb",
}


def _parts(key: str) -> int:
    """Into how many parts the compute units of this card are cut."""
    return max(int(profile[0]) for profile in SLICES[_SLICED_LIKE.get(key, key)])


def _slice(key: str, profile: str, text: str) -> Gpu:
    profile = profile.removeprefix("mig-")
    slices = slices_of(key)
    if profile not in slices:
        known = f"{GPUS[key].name} has {', '.join(slices)}" if slices else f"{GPUS[key].name} has no MIG slices"
        raise UnsupportedError(
            f"--gpu {text[:60]!r}: {profile[:20]!r} is neither a count nor a known MIG slice", fix=known
        )
    return slices[profile]


def _count(word: str, text: str) -> int:
    count = int(word) if len(word) <= len(str(_MOST_GPUS)) else 0
    if not 1 <= count <= _MOST_GPUS:
        raise BadValueError(f"--gpu {text[:60]!r}: the count is out of range", fix=f"1 to {_MOST_GPUS} cards")
    return count


def _key_of(name: str, text: str) -> str:
    if name in SPELLINGS or name in GPUS:  # as most people write it: what follows compares every spelling
        return SPELLINGS.get(name, name)
    names = _names()
    wanted = _squashed(name)
    if wanted in names:
        return names[wanted]
    near = _near(wanted, names)
    some = f"did you mean {', '.join(near)}?" if near else f"known are {', '.join(_USUAL)} and more;"
    size = "SIZE, the total that its driver shows"
    if near:
        size = f"{GPUS[near[0]].memory_bytes / GIB:.2f}GiB, what {GPUS[near[0]].name} has in all"
    raise UnsupportedError(
        f"--gpu {text[:40]!r} is unknown",
        fix=f"{some} kvbudget gpus lists all; or give --gpu-memory {size}",
    )


def _known(name: str) -> bool:
    return _squashed(_slice_in(name)[0]) in _names()


def _names() -> dict[str, str]:
    """Every spelling without case, makers and dashes, and its key."""
    names = {_squashed(word): row[0] for row in ROWS for word in row[:2]}
    names.update({_squashed(word): key for word, key in SPELLINGS.items()})
    return names


def _near(wanted: str, names: dict[str, str]) -> list[str]:
    import difflib  # only an error needs it

    matches = difflib.get_close_matches(wanted[:64], names, n=3 * _NEAR, cutoff=_LEAST_LIKENESS)
    return list(dict.fromkeys(names[match] for match in matches))[:_NEAR]


def _squashed(name: str) -> str:
    """A name without case, makers, spaces and dashes, so that all spellings of a card meet."""
    words = name.lower().replace("_", " ").replace("-", " ").replace("(", " ").replace(")", " ").split()
    return "".join(word for word in words if word not in _MAKERS and word != _SHARED)


def _gpu(row: Row) -> Gpu:
    _, name, gib, low, high, measured, gb_per_s, bf16, fp8, link, unified = row
    return Gpu(
        name=name,
        memory_bytes=_bytes(gib),
        source=MEASURED if measured else ESTIMATED,
        low_bytes=_bytes(low),
        high_bytes=_bytes(high),
        memory_bandwidth_bytes_per_s=int(gb_per_s * 10**9),
        bf16_flops=int(bf16 * 10**12),
        fp8_flops=int(fp8 * 10**12),
        link=link,
        unified=unified,
    )


def _bytes(gib: float) -> Bytes:
    return Bytes(int(gib * GIB))
