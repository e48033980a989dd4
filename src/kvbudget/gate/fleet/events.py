"""What can happen to one instance of a fleet, beside the events of its gate."""

from enum import Enum
from typing import NamedTuple


class Heard(Enum):
    """What the end of a request tells of the engine that had it."""

    WELL = "well"  # it answered, were it with a refusal of the request
    FAILED = "failed"  # it could not be reached, broke off, was silent for too long, or answered 5xx
    NOTHING = "nothing"  # the client left, or we cut it off


class Serves(NamedTuple):
    """The engine tells the names of its models, LoRA adapters among them."""

    models: frozenset[str]


class Drained(NamedTuple):
    """An operator takes it out of service (True): what is forwarded goes on, who waits goes elsewhere; or back."""

    out: bool


class Joined(NamedTuple):
    """It was found, and takes part from now on; or one that was to leave stays after all."""


class Leaving(NamedTuple):
    """It is to go: what is forwarded goes on to its end, who waits goes elsewhere, nobody new comes."""


class Gone(NamedTuple):
    """Nothing of it lives any more: it is taken away."""


class HeldElsewhere(NamedTuple):
    """So many blocks of its pool are held by what did not come through us."""

    blocks: int


class Restarted(NamedTuple):
    """It is another process than before: it holds nothing of what was forwarded until then."""
