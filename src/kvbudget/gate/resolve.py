"""Decides which lengths a request is promised: clamped to what can be served at all, or why that is impossible."""

from kvbudget.gate.config import GateConfig
from kvbudget.gate.events import Arrived
from kvbudget.gate.refusing.refusals import Refusal
from kvbudget.pool.footprint import Footprint, largest_new_tokens
from kvbudget.pool.groups import Layout
from kvbudget.pool.ledger import Ledger
from kvbudget.units import Blocks, Tokens


class Resolver:
    """The caps on lengths of one gate.

    `context_cap`: most tokens of prompt and output together that were set or told; None if the pool is the only bound.
    """

    def __init__(self, config: GateConfig, ledger: Ledger) -> None:
        self.engine_context: Tokens | None = None
        self.context_cap = config.max_context
        self._config = config
        self._ledger = ledger
        # Where several gates share a pool, one who comes is asked about twice.
        self._last: Arrived | None = None
        self._last_cap: Tokens | None = None
        self._last_seqs = 0
        self._last_pool_blocks = Blocks(0)
        self._last_layout: Layout | None = None
        self._last_resolved: tuple[Footprint, Blocks] | Refusal = Refusal.NEVER_FITS

    def configure(self, config: GateConfig) -> None:
        """Decide by other limits; by another `max_context` once `engine_told` follows."""
        self._config = config

    def engine_told(self, max_context: Tokens | None) -> None:
        """The engine's own cap, None if it has none; the least of those that are known holds."""
        self.engine_context = max_context
        caps = [cap for cap in (self._config.max_context, max_context) if cap is not None]
        self.context_cap = min(caps) if caps else None

    @property
    def max_context(self) -> Tokens:
        """The cap, or what the pool can hold where that is less."""
        return largest_context(self.context_cap, self._ledger)

    def resolve(self, event: Arrived) -> tuple[Footprint, Blocks] | Refusal:
        """The lengths to promise and their peak; or why the request can never be served."""
        ledger, cap, most_seqs = self._ledger, self.context_cap, self._config.max_num_seqs
        pool_blocks, layout = ledger.pool_blocks, ledger.layout
        if (
            event is not self._last
            or cap != self._last_cap
            or most_seqs != self._last_seqs
            or pool_blocks != self._last_pool_blocks
            or layout is not self._last_layout
        ):
            self._last, self._last_cap, self._last_seqs = event, cap, most_seqs
            self._last_pool_blocks, self._last_layout = pool_blocks, layout
            self._last_resolved = resolve(event, cap, most_seqs, ledger)
        return self._last_resolved


def resolve(
    event: Arrived, context_cap: Tokens | None, max_num_seqs: int, ledger: Ledger
) -> tuple[Footprint, Blocks] | Refusal:
    """The lengths to promise and their peak; or why the request can never be served."""
    if event.sequences * len(event.prompts) > max_num_seqs:
        return Refusal.TOO_MANY_SEQUENCES
    found = _resolved(event, context_cap, ledger, exact=event.exact)
    if found is Refusal.NEVER_FITS and not event.exact:
        # Several sequences that may each take the whole context: taken at its word, the bound leaves them less.
        taken = _resolved(event, context_cap, ledger, exact=True)
        return found if isinstance(taken, Refusal) else taken
    return found


def _resolved(
    event: Arrived, context_cap: Tokens | None, ledger: Ledger, *, exact: bool
) -> tuple[Footprint, Blocks] | Refusal:
    asked = event.max_new_tokens if event.max_new_tokens is not None else event.default_new_tokens
    prompts = event.prompts
    if context_cap is not None:
        longest = prompts[0] if len(prompts) == 1 else max(prompts)
        if not exact:
            # The engine holds no request to more than its window, so a bound is worth at most what that leaves
            # beside the asked tokens; taking it at its word would refuse prompts that fit.
            if asked >= context_cap:
                asked = Tokens(context_cap - 1)
            if longest > context_cap - asked:
                longest = Tokens(context_cap - asked)
                prompts = tuple([min(prompt, longest) for prompt in prompts])
        room = context_cap - longest
        if room < 1:
            return Refusal.CONTEXT_EXCEEDED
        if asked > room:
            asked = Tokens(room)
    footprint = Footprint(prompts, asked, event.sequences)
    peak_blocks = footprint.peak_blocks(ledger.layout)
    if peak_blocks <= ledger.pool_blocks:
        return footprint, peak_blocks
    # No limit named: ours shrinks to the pool. A limit that the client named is not cut below the context cap.
    cap = largest_context(context_cap, ledger)
    largest = most_new_tokens(event, cap, ledger)
    if event.max_new_tokens is None and largest >= 1:
        footprint = Footprint(prompts, largest, event.sequences)
        return footprint, footprint.peak_blocks(ledger.layout)
    return Refusal.NEVER_FITS


def largest_context(context_cap: Tokens | None, ledger: Ledger) -> Tokens:
    """Most tokens of prompt and output together, per sequence: what is configured or told, or what the pool holds."""
    capacity = ledger.layout.largest_length(ledger.pool_blocks)
    return capacity if context_cap is None else min(context_cap, capacity)


def most_new_tokens(event: Arrived, max_context: Tokens, ledger: Ledger) -> Tokens:
    """Most new tokens with which the same prompts could be served on an idle engine."""
    room = max(0, max_context - max(event.prompts))
    by_pool = largest_new_tokens(ledger.layout, event.prompts, event.sequences, ledger.pool_blocks)
    return min(Tokens(room), by_pool)
