"""Decides how much memory that was freed stays with the process instead of going back to the system at once.

A body of 100 kB is held a few times over for less than a millisecond. By its defaults glibc gives such pieces back to
the kernel each time and gets them anew, page by page: measured, 25 us of the 110 that a request of that size takes.
"""

import ctypes
from typing import Final

from kvbudget.units import MIB

# glibc, malloc.h.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
KEPT_BYTES: Final = 64 * MIB
"""Freed memory at the end of the heap that is kept."""
_PIECE_BYTES: Final = 32 * MIB
"""Pieces below it come from the heap; the largest value that glibc takes. A body has 16 MiB at most."""


def keep_freed_memory() -> bool:
    """Tells the C library, for the whole process. False where it is not glibc: then nothing changes."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _PIECE_BYTES) and mallopt(_TRIM_THRESHOLD, KEPT_BYTES))
