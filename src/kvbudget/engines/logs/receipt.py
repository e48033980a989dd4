"""What an engine really reported of its memory and pool: the values, and the line that told each of them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from kvbudget.units import GIB, MIB, is_digits

_UNITS = {"GIB": GIB, "GB": GIB, "MIB": MIB, "MB": MIB, "B": 1}  # engines divide by 2**30 and print "GB" all the same
_LARGEST = 1 << 60
_SHOWN = 300  # characters of a line that are kept


class Told(NamedTuple):
    """Which line (counted from 1) told a field, and its text."""

    field: str
    line: int
    text: str


class Receipt(NamedTuple):
    """One start of one engine. None: not told. Sizes in bytes on ONE rank, the one that decided.

    `kv_bytes` is that of the tightest rank (it sizes the pool of all), the other sizes those of the fullest.
    `tokens` and `concurrency` as printed. `graphs_counted`: CUDA graphs were taken off before the pool was sized.
    `blocks_given`: the number of blocks was asked for, so memory did not decide it. `kv_bytes_most`: of the roomiest
    rank. `free_bytes`: what was free on the card when the engine started. `flags` are those that differ from the
    engine's defaults, where it prints them.
    """

    engine: str
    version: str | None = None
    model: str | None = None
    ranks: int | None = None
    flags: tuple[tuple[str, str], ...] = ()
    total_bytes: int | None = None
    free_bytes: int | None = None
    usable_bytes: int | None = None
    weights_bytes: int | None = None
    activation_bytes: int | None = None
    non_torch_bytes: int | None = None
    cuda_graphs_bytes: int | None = None
    kv_bytes: int | None = None
    kv_bytes_most: int | None = None
    num_blocks: int | None = None
    block_size: int | None = None
    tokens: int | None = None
    concurrency: float | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    graphs_counted: bool | None = None
    blocks_given: bool | None = None
    refusal: str | None = None
    needed_bytes: int | None = None
    estimated_max_model_len: int | None = None
    told: tuple[Told, ...] = ()

    @property
    def sized(self) -> bool:
        """Whether it says anything of the pool, or why there is none."""
        return any(
            value is not None for value in (self.tokens, self.num_blocks, self.kv_bytes, self.concurrency, self.refusal)
        )


class Line(NamedTuple):
    """One line of a log without colours and envelopes. `rank` is the process that wrote it, "" where it is not said."""

    number: int
    text: str
    rank: str


class Facts:
    """Collects what lines tell. A field told again by the same rank is replaced, or added to with `add`."""

    def __init__(self) -> None:
        self.values: dict[str, object] = {}
        self.flags: dict[str, str] = {}
        self._told: dict[str, Told] = {}
        self._by_rank: dict[str, dict[str, int]] = {}

    def note(self, field: str, value: object, line: Line, *, once: bool = False) -> None:
        """Take `value`; with `once`, only where nothing was told before."""
        if value is None or (once and field in self.values):
            return
        self.values[field] = value
        self._told[field] = Told(field, line.number, line.text[:_SHOWN])

    def note_size(self, field: str, size: int | None, line: Line, *, add: bool = False) -> None:
        """Take a size of this line's rank; `kv_bytes` ends as the least of all ranks, all others as the most."""
        if size is None:
            return
        ranks = self._by_rank.setdefault(field, {})
        size = ranks.get(line.rank, 0) + size if add else size
        ranks[line.rank] = size
        decides = min(ranks.values()) if field == "kv_bytes" else max(ranks.values())
        if size == decides or add or field not in self.values:
            self.note(field, decides, line)
        if field == "kv_bytes":
            self.values["kv_bytes_most"] = max(ranks.values())

    def ranks_of(self, field: str) -> int:
        """How many ranks told a size."""
        return len(self._by_rank.get(field, {}))

    def receipt(self, engine: str) -> Receipt:
        """All that was told."""
        known: dict[str, Any] = {name: value for name, value in self.values.items() if name in Receipt._fields}
        told = tuple(sorted(self._told.values(), key=lambda told: told.line))
        flags = tuple(sorted(self.flags.items()))
        return Receipt(engine, told=told, flags=flags)._replace(**known)


def size(number: str, unit: str) -> int | None:
    """Bytes from what a log prints, `3.81` and `GiB`; None for what is no size. Negative ones are kept: they tell."""
    factor = _UNITS.get(unit.upper())
    negative = number.startswith("-")
    whole, _, fraction = number.removeprefix("-").replace(",", "").partition(".")
    if factor is None or not is_digits(whole + fraction) or len(whole) > 15 or len(fraction) > 15:
        return None
    found = int(whole or 0) * factor + (int(fraction) * factor // 10 ** len(fraction) if fraction else 0)
    return -found if negative else found


def count(text: str) -> int | None:
    """A whole number, with or without thousands separators; None for what is none or beyond any machine."""
    digits = text.replace(",", "")
    if not is_digits(digits) or len(digits) > 18:
        return None
    return min(int(digits), _LARGEST)


def version_pair(text: str) -> tuple[int, int] | None:
    """(major, minor) of `0.32.0+cpu` or `v0.6.4.post1`; None for what is no version."""
    major, _, rest = text.removeprefix("v").partition(".")
    minor = rest.partition(".")[0]
    digits = "".join(c for c in minor if is_digits(c)) if minor[:1].isdigit() else ""
    return (int(major), int(digits)) if is_digits(major) and digits and len(major + digits) < 12 else None


def receipt_document(receipt: Receipt) -> dict[str, object]:
    """As JSON or TOML: what was not told is left out."""
    document: dict[str, object] = {}
    for field, value in receipt._asdict().items():
        if value is None or field in ("told", "flags"):
            continue
        document[field] = value
    if receipt.flags:
        document["flags"] = dict(receipt.flags)
    if receipt.told:
        document["told"] = [f"{told.field}, line {told.line}: {told.text}" for told in receipt.told]
    return document


def receipt_from(document: Mapping[str, object]) -> Receipt:
    """The other way, from a budget file; fields that are not known, or of another type, are dropped."""
    known: dict[str, Any] = {}
    for field, kind in _KINDS.items():
        value = document.get(field)
        fits = isinstance(value, int | float) if kind is float else type(value) is kind
        if fits and not (kind is float and isinstance(value, bool)):
            known[field] = value
    flags = document.get("flags")
    pairs = tuple((str(name), str(value)) for name, value in flags.items()) if isinstance(flags, Mapping) else ()
    return Receipt(str(document.get("engine", "")), flags=pairs)._replace(**known)


_TEXTS = ("version", "model", "refusal")
_SIGNS = ("graphs_counted", "blocks_given")
_KINDS: dict[str, type] = {
    field: str if field in _TEXTS else bool if field in _SIGNS else float if field == "concurrency" else int
    for field in Receipt._fields
    if field not in ("engine", "flags", "told")
}
