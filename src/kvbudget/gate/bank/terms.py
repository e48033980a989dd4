"""What a gate and the bank tell each other: whole figures, never changes, so that any may be lost or come twice.

Every figure is of one account: what is shared out, such as the blocks of a pool. Amounts are whole numbers in the unit
of the account.
"""

from typing import Final, NamedTuple

BLOCKS: Final = "blocks"  # of the pool, the null block and the margin aside
SEQUENCES: Final = "sequences"  # of max_num_seqs
TENANT: Final = "tenant "  # and its name: of the blocks that it may have; told to the others, never asked for
PREFIX: Final = "prefix "  # and the name of a beginning of prompts: blocks of the pool that are charged once for all
TOKENS: Final = "tokens "  # and a tenant's name: taken of those of a minute, and not come back since; told as well


class Line(NamedTuple):
    """One account as a gate tells of it.

    `limit`: what there is for all gates together, as far as this one knows. `keeps`: of its slice; it has given up the
    rest before it says so. More than its slice: what the bank may have forgotten, or what it has kept in common until
    now and has promised by itself. `needs`: for what it has promised and for the first that waits; where that is more
    than `keeps`, it asks. `wants`: what it would like to have beyond that, if nobody lacks anything; at least `needs`.
    `promised`: of its slice, now.
    """

    account: str
    limit: int
    keeps: int
    needs: int
    wants: int
    promised: int


class Reading(NamedTuple):
    """The engine's own word: blocks that it holds, and sequences that it runs or lets wait, so many ms ago."""

    held: int
    sequences: int
    age_ms: int


class Call(NamedTuple):
    """What a gate tells the bank. Calls of one gate are numbered; the bank heeds none that is older than the last.

    `branch`: one life of one gate, never used again. `priority`, `waited_ms`: of the first that waits, if it asks.
    `reading`: the last look at the engine; None where it tells nothing of this. `leaves`: it gives up all that it has
    and will not call again.
    """

    branch: str
    number: int
    lease_ms: int
    lines: tuple[Line, ...]
    priority: int = 0
    waited_ms: int = 0
    leaves: bool = False
    reading: Reading | None = None


class Slice(NamedTuple):
    """One account as the bank answers. `granted`: what the gate may promise of it. `elsewhere`: promised by all other
    gates, by their last word."""

    granted: int
    elsewhere: int


class Answer(NamedTuple):
    """`number`: of the call that it answers. `known`: the bank knew this branch; otherwise whatever it had is gone, but
    for what it was granted anew here. `short`: another gate lacks something, so nothing should lie idle. `yields_to`:
    the class of one at another gate who has waited so much longer than all here that nobody of it, or less urgent, is
    to be let in before. `settling`: the bank waits for those whom it may have forgotten, and grants nothing beyond what
    they say that they keep. `missing`: of gates whose lease ran out something may still be in the engine; a fresh look
    at it would tell."""

    number: int
    known: bool
    short: bool
    settling: bool
    branches: int
    slices: dict[str, Slice]
    yields_to: int | None = None
    missing: bool = False
