"""Decides what older builds of llama.cpp did differently, by build number ("b9000").

Numbers are those of the releases of the days when the named pull requests were merged, give or take a few.
"""

from typing import NamedTuple

from kvbudget.errors import UnsupportedError
from kvbudget.units import is_digits

OLDEST, LATEST = 1500, 19999  # no later build is known; what is newer than b10000 is planned as if it were that


class Build(NamedTuple):
    """`since`: the first build. `latent`: MLA keeps the latent (#12801, 2025-04). `latent_values`: it keeps a copy of
    the latent's value part as V beside it (until #19067, 2026-01). `windows`: sliding layers have a cache of their own
    (#13194, 2025-05). `shared_slots`: without --parallel there are 4 slots that share one cache (#16736, 2025-11),
    before one slot. `fits`: a context that is not given is cut to what the memory holds (#16653, 2025-12).
    `output_counts`: --n-gpu-layers counts the output layer as the last one."""

    since: int
    latent: bool = True
    latent_values: bool = False
    windows: bool = True
    shared_slots: bool = True
    fits: bool = True
    output_counts: bool = True


_PRESENT = Build(7825)
_VALUES = _PRESENT._replace(since=7400, latent_values=True)
_UNFITTED = _VALUES._replace(since=6930, fits=False, output_counts=False)
_ONE_SLOT = _UNFITTED._replace(since=5430, shared_slots=False)
_FULL_WINDOWS = _ONE_SLOT._replace(since=5141, windows=False)
_EXPANDED = _FULL_WINDOWS._replace(since=OLDEST, latent=False)
_ALL = (_PRESENT, _VALUES, _UNFITTED, _ONE_SLOT, _FULL_WINDOWS, _EXPANDED)


def build_of(version: str) -> Build:
    """The build of "b9000" or "9000"; "" is the newest. Raises UnsupportedError."""
    if not version:
        return _PRESENT
    digits = version.removeprefix("b")
    number = int(digits) if is_digits(digits) and len(digits) <= 6 else -1
    if not OLDEST <= number <= LATEST:
        raise UnsupportedError(
            f"--engine llamacpp@{version[:20]}: its cache is not known; known are builds b{OLDEST} to b{LATEST}",
            fix="use --engine llamacpp, or the build number that llama-server --version prints",
        )
    return next(build for build in _ALL if number >= build.since)
