"""One instance of a fleet: its gate, what it serves, and how much of it may be used now."""

from kvbudget.gate.events import Arrived
from kvbudget.gate.fleet.affinity import Affinity
from kvbudget.gate.fleet.health import Circuit, SlowStart
from kvbudget.gate.fleet.options import FleetConfig, MemberOptions
from kvbudget.gate.gate import Gate
from kvbudget.pool.prefix import blocks_per_key
from kvbudget.units import Blocks

# What an engine has computed before costs neither its room nor the time to compute it again.
_AFFINITY_WORTH = 2


class Member:
    """State of one instance; only its fleet changes it."""

    def __init__(self, name: str, gate: Gate, options: MemberOptions, config: FleetConfig) -> None:
        self.name = name
        self.gate = gate
        self.options = options
        self.served: frozenset[str] = frozenset()  # model names by the engine's own word, kept while it is away
        self.prefix_credit = True  # whether its engine lets requests use one another's blocks, as far as is known
        self.draining = False  # by an operator
        self.leaving = False  # it was found, and is found no more
        self.vocabulary: object = None  # by which prompts are counted for it, as in `Arrived.counts`
        self.circuit = Circuit(config)
        self.ramp = SlowStart(config.ramp_ns)
        self.affinity = Affinity()
        self.elsewhere_blocks = Blocks(0)  # held in the engine by what came another way
        self.lent_blocks = 0  # reserved for shorter tiers
        self.stand_in_blocks = 0  # reserved for models that it stands in for
        self.was_up = False
        self.turn = 0  # number of the last request that it got

    def own(self, event: Arrived) -> Arrived:
        """The request as its gate is to see it: counted for it, and without prefix where its engine shares nothing."""
        event = self.counted(event)
        return event if self.prefix_credit or not event.prefix else event._replace(prefix=())

    def reads(self, event: Arrived) -> bool:
        """Whether its model can have the request: it was counted by its vocabulary, or by one for all."""
        return event.counts is None or self.vocabulary in event.counts

    def counted(self, event: Arrived) -> Arrived:
        """The request with what its prompts are by the vocabulary of this instance, which `reads` it."""
        counts = event.counts
        if counts is None:
            return event
        prompts, exact, paced, prefix = counts[self.vocabulary]
        return event._replace(prompts=prompts, exact=exact, paced=paced, prefix=prefix)

    @property
    def known(self) -> bool:
        """Whether its pool has ever been known."""
        return self.gate.ledger.usable_blocks > 0

    @property
    def in_service(self) -> bool:
        """Whether it takes part, circuit aside."""
        return self.gate.backend_up and not (self.draining or self.leaving or self.gate.ledger_lost)

    @property
    def empty(self) -> bool:
        """Whether nobody lives there or waits."""
        return not len(self.gate.ledger) and not self.gate.queue

    def takes(self, now_ns: int) -> bool:
        """Whether it may get a request now, if there is room."""
        return self.in_service and self.circuit.takes(now_ns)

    def expects(self, event: Arrived, now_ns: int) -> bool:
        """Whether it told this one to come back by now."""
        return self.gate.returns.due(self.own(event), now_ns) is not None

    def serves(self, model: str | None) -> bool:
        """Whether it is asked for by this name. Who told no names takes any."""
        names = self.options.models or self.served
        return model is None or not names or model in self.options.models or model in self.served

    def stands_in_for(self, model: str | None) -> bool:
        """Whether it may help out."""
        return model is not None and model in self.options.fallback

    def taken_blocks(self, now_ns: int) -> Blocks:
        """What of its pool is not to be promised for now."""
        share = self.ramp.share(now_ns)
        withheld = 0 if share >= 1.0 else int((1.0 - share) * self.gate.ledger.pool_blocks)
        return Blocks(max(withheld, self.elsewhere_blocks))

    def fits_at_peaks(self, peak_blocks: int) -> bool:
        """Whether it would fit even if everybody stood at the worst moment at once."""
        ledger = self.gate.ledger
        return ledger.peak_sum_blocks + self.gate.promises.taken_blocks + peak_blocks <= ledger.capacity_blocks

    def load_with(self, event: Arrived, peak_blocks: int, now_ns: int, *, at_peaks: bool) -> float:
        """The fullest it would be with this request, 1 = full, by weight: blocks at the worst moment to come as the
        gate foresees it, or as the sum of all peaks (`at_peaks`, far cheaper); or sequences. What it has computed
        already of the prompt counts in its favour."""
        gate = self.gate
        ledger, promises = gate.ledger, gate.promises
        capacity = max(1, ledger.pool_blocks)
        if at_peaks:
            used = ledger.peak_sum_blocks + promises.elsewhere_blocks
        else:
            used = capacity - promises.free_to_tell(now_ns)
        saved = 0
        if event.prefix:
            saved = self.affinity.longest(event.prefix) * blocks_per_key(ledger.layout) * gate.config.key_blocks
        blocks = (used + promises.taken_blocks + peak_blocks - _AFFINITY_WORTH * saved) / capacity
        sequences = (ledger.sequences + 1) / max(1, gate.config.max_num_seqs)
        return (max(blocks, sequences) if saved == 0 else blocks) / self.options.weight

    def got(self, event: Arrived, turn: int) -> None:
        """It was given a request."""
        self.turn = turn
        self.circuit.given(event.request_id)
        if event.prefix:
            ledger = self.gate.ledger
            per_key = max(1, blocks_per_key(ledger.layout) * self.gate.config.key_blocks)
            self.affinity.saw(event.prefix, ledger.usable_blocks // per_key)
