"""What the gate tells its driver to do."""

from typing import ClassVar, Final, NamedTuple

from kvbudget.gate.refusing.refusals import QueueBound, Refusal
from kvbudget.gate.waiting.why import Why
from kvbudget.units import Blocks, Tokens
from kvbudget.values import Value


class Forward(Value):
    """Send it to the engine now. The reservation lives until the driver pushes Ended."""

    _fields: ClassVar = ("request_id", "reserved_blocks", "max_new_tokens", "waited_ns")
    __slots__ = _fields

    def __init__(self, request_id: str, reserved_blocks: Blocks, max_new_tokens: Tokens, waited_ns: int) -> None:
        self.request_id: Final = request_id
        self.reserved_blocks: Final = reserved_blocks
        self.max_new_tokens: Final = max_new_tokens
        self.waited_ns: Final = waited_ns


class Parked(NamedTuple):
    """It waits at `position` (1 = next). A Forward or Reject follows, unless the driver pushes Ended before."""

    request_id: str
    position: int


class Reject(NamedTuple):
    """Answer with a refusal; nothing is reserved and nothing more will come for this request.

    `retry_after_ns`: when room is expected (0 where trying again is hopeless). `largest_new_tokens`: the most new
    tokens with which the same prompt could be served on an idle engine. `sequences` is what the request would run,
    `running_sequences` what runs. `bound`: which one of the queue it met, where that is why. `limit`: that bound, in
    requests, tokens or ns; of TENANT_BLOCKS and TENANT_TOO_LARGE, what the tenant may reserve, in blocks. `why`: what
    was in the way of one who waited in vain, at the last look at it. `settling`: a shared ledger gives no room yet.
    """

    request_id: str
    refusal: Refusal
    prompt_tokens: Tokens
    max_new_tokens: Tokens | None
    needed_blocks: Blocks
    free_blocks: Blocks
    capacity_blocks: Blocks
    max_context: Tokens
    largest_new_tokens: Tokens
    position: int
    retry_after_ns: int
    sequences: int = 1
    running_sequences: int = 0
    max_num_seqs: int = 0
    waited_ns: int = 0
    bound: QueueBound | None = None
    limit: int = 0
    why: Why | None = None
    settling: bool = False


Command = Forward | Parked | Reject
