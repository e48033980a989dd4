"""What can happen to the gate. Drivers (gateway, simulator, tests) push these with the time at which they happened.

NamedTuples, because a gate makes several of them per request and a frozen dataclass costs four times as much to make;
those of every request are cheaper still (`kvbudget.values`).
"""

from collections.abc import Mapping
from typing import ClassVar, Final, NamedTuple

from kvbudget.gate.refusing.refusals import Outcome
from kvbudget.pool.groups import Layout
from kvbudget.units import Blocks, Tokens
from kvbudget.values import Value


class Counted(NamedTuple):
    """What a request's prompts are by the vocabulary of one model; members as in `Arrived`."""

    prompts: tuple[Tokens, ...]
    exact: bool
    paced: bool
    prefix: tuple[int, ...] = ()


class Arrived(Value):
    """A request whose prompts are counted.

    `max_new_tokens`: what the client asked for per sequence, None if it named no limit, and then
    `default_new_tokens` is taken. `paced`: its tokens will be reported by Progressed. A smaller `priority` is more
    urgent (vLLM's sign). `deadline_ns`: it must be forwarded by then. Not `exact`: `prompts` are upper bounds.
    `route`: model and path, by which lengths are learned apart. `known_tokens`: what it will really produce, if the
    driver is clairvoyant; only the `learned` policy looks at it. `prefix`: keys of the single prompt's blocks
    (`pool.chains`), of `Ledger.key_tokens` tokens each; empty where nothing may be shared. `model`: as the client named
    it, None if it did not; by it a fleet chooses, a gate takes whatever it is given. `counts`: by `Member.vocabulary`,
    where instances that may take it count otherwise: each is given its own, and who has none there does not get it.
    """

    _fields: ClassVar = (
        "request_id", "prompts", "max_new_tokens", "default_new_tokens", "sequences", "tenant", "priority",
        "paced", "deadline_ns", "exact", "route", "known_tokens", "prefix", "model", "counts",
    )  # fmt: skip
    __slots__ = _fields

    def __init__(
        self,
        request_id: str,
        prompts: tuple[Tokens, ...],
        max_new_tokens: Tokens | None,
        default_new_tokens: Tokens,
        sequences: int = 1,
        tenant: str = "default",
        priority: int = 0,
        paced: bool = False,
        deadline_ns: int | None = None,
        *,
        exact: bool = True,
        route: str = "",
        known_tokens: Tokens | None = None,
        prefix: tuple[int, ...] = (),
        model: str | None = None,
        counts: Mapping[object, Counted] | None = None,
    ) -> None:
        self.request_id: Final = request_id
        self.prompts: Final = prompts
        self.max_new_tokens: Final = max_new_tokens
        self.default_new_tokens: Final = default_new_tokens
        self.sequences: Final = sequences
        self.tenant: Final = tenant
        self.priority: Final = priority
        self.paced: Final = paced
        self.deadline_ns: Final = deadline_ns
        self.exact: Final = exact
        self.route: Final = route
        self.known_tokens: Final = known_tokens
        self.prefix: Final = prefix
        self.model: Final = model
        self.counts: Final = counts


class Progressed(NamedTuple):
    """`new_tokens` more tokens of a forwarded request were seen. `cached_tokens`: so many of its prompt's tokens the
    engine had not to compute, None if it does not tell (yet)."""

    request_id: str
    new_tokens: int
    cached_tokens: Tokens | None = None


class PaceLost(NamedTuple):
    """The tokens of a forwarded request can no longer be seen as they come (its reader has stalled)."""

    request_id: str


class Ended(Value):
    """A request is over, queued or forwarded. `output_tokens` as the engine reported it, None if unknown.

    `engine_done`: the engine itself ended the request and has its blocks back already. Otherwise it was cut off, and
    the blocks are kept for `abort_tail_ns` until the engine has noticed. `cached_tokens`: as of Progressed.
    """

    _fields: ClassVar = ("request_id", "outcome", "output_tokens", "engine_done", "cached_tokens")
    __slots__ = _fields

    def __init__(
        self,
        request_id: str,
        outcome: Outcome,
        output_tokens: Tokens | None = None,
        engine_done: bool = True,
        cached_tokens: Tokens | None = None,
    ) -> None:
        self.request_id: Final = request_id
        self.outcome: Final = outcome
        self.output_tokens: Final = output_tokens
        self.engine_done: Final = engine_done
        self.cached_tokens: Final = cached_tokens


class RoomTaken(NamedTuple):
    """So many blocks of the pool are not ours to promise for now, beside the margin: traffic that came to the engine by
    another way holds them, or an engine that has just come back is not to be filled at once. Tells the whole, not a
    change. Nobody is refused for good because of it."""

    blocks: Blocks


class EngineBusy(NamedTuple):
    """The engine itself said that it is overloaded: nobody is let in until then."""

    until_ns: int


class Preempted(NamedTuple):
    """The engine took the blocks of forwarded requests away again; `request_id` None where only their number is known
    (from a counter of its metrics)."""

    request_id: str | None = None
    requests: int = 1


class PoolHeld(NamedTuple):
    """What the engine says that it holds; blocks that are cached but unreferenced do not count (vLLM's
    `kv_cache_usage_perc` times its usable blocks). Only the `learned` policy looks at it."""

    blocks: Blocks


class CacheChanged(NamedTuple):
    """What the engine says of its prefix cache, in keys as in `Arrived.prefix` (vLLM's BlockStored, BlockRemoved and
    AllBlocksCleared, whose token ids and parents the driver turns into keys). `cleared` comes before `stored`."""

    stored: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    cleared: bool = False


class CapacityChanged(NamedTuple):
    """The engine's pool is now this large (`usable_blocks` without the null block)."""

    layout: Layout
    usable_blocks: Blocks
    max_context: Tokens | None


class SliceChanged(NamedTuple):
    """Several gates promise out of the same pool: this one may promise so many blocks and sequences until `until_ns`,
    and nothing from then on (`gate.bank`). `elsewhere`, `sequences_elsewhere`: what the others have promised.
    `yields_to`: nobody of this class, or less urgent, is let in: one at another gate has waited much longer.
    `tenants_elsewhere`: blocks that the others have reserved for tenants whose blocks are limited; None: not told.
    `gates`: how many there are, with this one. `tokens_elsewhere`: that the others have taken of those of a minute, by
    tenant, and that have not come back since. `settling`: nothing more is given to anybody until leases of before are
    over. `opens_ns`: when that is, at the latest, or the ledger is known to be lost; 0 while it gives room."""

    blocks: Blocks
    sequences: int
    until_ns: int
    elsewhere: Blocks
    sequences_elsewhere: int = 0
    yields_to: int | None = None
    gates: int = 1
    tenants_elsewhere: Mapping[str, int] | None = None
    tokens_elsewhere: Mapping[str, int] | None = None
    settling: bool = False
    opens_ns: int = 0


class BackendChanged(NamedTuple):
    """The engine came up (True) or went away (False)."""

    up: bool


class DrainStarted(NamedTuple):
    """Admit nobody any more; what is forwarded goes on."""


class Tick(NamedTuple):
    """Time has passed: `Gate.next_wake_ns` was reached."""


Event = (
    Arrived
    | Progressed
    | PaceLost
    | Ended
    | RoomTaken
    | EngineBusy
    | Preempted
    | PoolHeld
    | CacheChanged
    | CapacityChanged
    | SliceChanged
    | BackendChanged
    | DrainStarted
    | Tick
)
