"""One engine instance as the gate lives with it: looks at it, and tells its gate what that means.

What an engine says corrects what we believe of it, and overwrites no promise: its pool and context become the gate's
unless they were set by hand, what it holds beyond ours is room that others have taken, and a look that fails takes
nothing away.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import replace

from kvbudget.edge.http.limits import UpstreamLimits
from kvbudget.edge.http.upstream import Upstream
from kvbudget.edge.instances.backend import Backend, EngineFacts
from kvbudget.edge.instances.scrape import EngineReading
from kvbudget.edge.instances.settings import InstanceSettings
from kvbudget.engines.readings import EnginePool
from kvbudget.gate.config import GateConfig
from kvbudget.gate.events import BackendChanged, CapacityChanged, Event, PoolHeld, Preempted
from kvbudget.gate.fleet.events import Drained, HeldElsewhere, Restarted, Serves
from kvbudget.gate.fleet.fleet import InstanceEvent
from kvbudget.gate.fleet.member import Member
from kvbudget.gate.fleet.options import FleetConfig
from kvbudget.gate.fleet.readings import Elsewhere, Look, Restarts, Stuckness
from kvbudget.gate.gate import Gate
from kvbudget.gate.policies import Policy
from kvbudget.pool.groups import Layout, uniform_layout
from kvbudget.pool.prefix import Sharing
from kvbudget.units import Blocks

log = logging.getLogger("kvbudget.instance")

_LARGEST_BLOCK = 65536  # tokens; vLLM's largest so far are hybrids' 4,128
STUCK = "its scheduler makes no progress although /health answers 200"

Push = Callable[[Member, Event | InstanceEvent], None]


class Instance:
    """Settings, connections, gate and watch of one instance. `start` begins to look at it, `close` ends that."""

    def __init__(
        self,
        settings: InstanceSettings,
        config: GateConfig,
        fleet: FleetConfig,
        limits: UpstreamLimits,
        *,
        prefix_cache_assumed: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tls`: what the certificate of an https engine is checked by."""
        self.settings = settings
        self.upstream = Upstream(settings.url, limits, tls)
        self.backend = Backend(settings.url, self.upstream, name=settings.name, aliases=settings.aliases)
        self.assumed = prefix_cache_assumed
        self._config = config
        layout = settings.layout or uniform_layout(settings.block_size or 16)
        gate = Gate(self.config_of(config), layout, Blocks(settings.pool_blocks or 0))
        gate.backend_up = False  # until the first look at it
        self.member = Member(self.backend.name, gate, settings.options(), fleet)
        self.member.draining = settings.drain
        self.member.prefix_credit = False  # until its engine says that it has a prefix cache
        self.backend.on_down = lambda: self.looked(self.backend.facts)
        self.push: Push = lambda member, event: None
        self.lost: Callable[[Member], None] = lambda member: None  # what it had is lost: its process is another one
        self.found_up: Callable[[], None] = lambda: None  # after each look at an engine that is up
        self.recall: Callable[[Member], None] = lambda member: None  # who got nothing yet is to be tried elsewhere
        # What of it is ours and that of other gates before it: (blocks, sequences, when the look began).
        self.seen: Callable[[int, int, int], None] = lambda held, sequences, looked_ns: None
        self.elsewhere = Elsewhere()
        self.stuck = Stuckness()
        self._restarts = Restarts()
        self._watch: asyncio.Task[None] | None = None
        self._fewer: tuple[int, int] | None = None  # (usable, told): what was last warned of
        self._preemptions: int | None = None  # the engine's counter, when it was last read
        self._deaf = False  # it was said that the engine does not tell
        self.was_looked_at = False
        self._moved = 0.0  # what its gate had heard of it at the last look

    def config_of(self, config: GateConfig) -> GateConfig:
        """The limits of its gate: those of all, and its own."""
        settings, own = self.settings, self.backend.facts.max_num_seqs
        most = config.max_num_seqs if settings.max_num_seqs is None else settings.max_num_seqs
        return replace(
            config,
            max_context=config.max_context if settings.max_context is None else settings.max_context,
            max_num_seqs=most if own is None else min(most, own),
        )

    def reconfigure(self, settings: InstanceSettings, config: GateConfig) -> None:
        """Go by other settings and limits from now on. Promises that were made are kept; who waits is judged anew."""
        was_drained, self.settings = self.settings.drain, settings
        self._config = config
        self.member.options = settings.options()
        self.backend.aliases = dict(settings.aliases)
        gate, pool, ledger = self.member.gate, self.backend.facts.pool, self.member.gate.ledger
        gate.configure(self.config_of(config))
        usable, layout = ledger.usable_blocks, ledger.layout
        if settings.pool_blocks is not None:
            usable = Blocks(settings.pool_blocks)
        elif pool is not None:
            usable = pool.usable_blocks
        if settings.layout is not None:
            layout = settings.layout
        elif settings.block_size is not None and settings.block_size != layout.groups[0].block_size:
            layout = uniform_layout(settings.block_size)
        self.push(self.member, CapacityChanged(layout, usable, gate.engine_context))
        if settings.drain != was_drained:
            self.push(self.member, Drained(settings.drain))

    def start(self) -> None:
        """Begin to watch."""
        self._watch = asyncio.create_task(self.backend.watch(self.looked), name=f"watch of {self.backend.name}")

    async def stop(self) -> None:
        """Look no more."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)

    # After a look

    def looked(self, facts: EngineFacts) -> None:
        """A look at the engine: its pool and context become the gate's, unless they were set by hand."""
        self.was_looked_at = True
        if not facts.up:
            self._changed(up=False)
            return
        settings, gate = self.settings, self.member.gate
        pool = facts.pool
        problem = facts.problem or "it does not tell its pool on /metrics"
        if pool is not None and (unusable := why_unusable(pool, settings.layout)):
            pool, problem = None, unusable
        usable = usable_blocks(settings.pool_blocks, pool)
        self._warn_of_fewer(settings.pool_blocks, usable)
        block_size = settings.block_size or (pool.block_size if pool else 16)
        if usable is None:
            told = f"the pool cannot be read from the engine ({problem}): give --pool-blocks and --block-size"
            self.backend.facts = replace(facts, up=False, problem=told)
            self._changed(up=False)
            return
        self._heed_restart(facts.reading)
        config = self.config_of(self._config)
        if config != gate.config:
            gate.configure(config)
            log.info("%s runs at most %d sequences", self.backend.name, config.max_num_seqs)
        layout = settings.layout or uniform_layout(block_size)
        ledger = gate.ledger
        if (layout, usable, facts.max_context) != (ledger.layout, ledger.usable_blocks, gate.engine_context):
            log.info("pool: %d usable blocks of %s, context %s", usable, _told_sizes(layout), facts.max_context)
            self.push(self.member, CapacityChanged(layout, Blocks(usable), facts.max_context))
        if facts.models and self.member.served != frozenset(facts.models):
            self.push(self.member, Serves(frozenset(facts.models)))
        self.found_up()
        self.member.prefix_credit = self._shares_prompts(gate.config, pool)
        self._judge(facts, usable)

    def _judge(self, facts: EngineFacts, usable: int) -> None:
        """Whether it does its work, by its own figures and by what comes from it."""
        gate = self.member.gate
        look = look_of(facts.reading, usable)
        was_stuck = self.stuck.is_stuck
        heard = gate.learned.lengths.answers + sum([living.seen_tokens for living in gate.ledger])
        moved, self._moved = heard != self._moved, heard
        if self.stuck.looked(look, gate.config.max_num_seqs, moved=moved):
            self.backend.facts = replace(facts, up=False, problem=STUCK)
            self._changed(up=False)
            if not was_stuck:
                self.recall(self.member)
            return
        self._changed(up=True)
        self._heed_preemptions(facts.reading)
        self._heed_what_is_held(facts.reading)
        blocks = self.elsewhere.looked(look, gate)
        if blocks != self.member.elsewhere_blocks:
            self.push(self.member, HeldElsewhere(blocks))
        if look.held_blocks is not None and look.running is not None:
            sequences = 0 if blocks else look.running + (look.waiting or 0)  # nobody tells whose of these are ours
            self.seen(max(0, look.held_blocks - blocks), sequences, self.backend.began_ns)

    def _changed(self, *, up: bool) -> None:
        """Tell of it when it came or went."""
        if up == self.member.gate.backend_up:
            return
        if up:
            log.info("the engine at %s is up", self.backend.url)
        else:
            self.elsewhere.forget()
            problem = self.backend.facts.problem
            log.warning(
                "the engine at %s is away (%s); it gets no requests until it is back", self.backend.url, problem
            )
        self.push(self.member, BackendChanged(up))

    def _heed_restart(self, reading: EngineReading | None) -> None:
        look = look_of(reading, 0)
        if self._restarts.looked(look):
            log.warning("the engine at %s is another process than before; what it had is lost", self.backend.url)
            self.elsewhere.forget()
            self.lost(self.member)
            self.push(self.member, Restarted())

    def _heed_preemptions(self, reading: EngineReading | None) -> None:
        """Tell the gate how many more there are. A counter that fell is that of a restarted engine: what it says are
        those since. What was there before we came says nothing of us."""
        count = None if reading is None else reading.preemptions
        if count is None:
            if reading is not None and not self._deaf and self.member.gate.config.policy is Policy.LEARNED:
                self._deaf = True
                log.warning(
                    "the engine does not tell its preemptions: policy learned cannot correct itself by them; "
                    "--policy trajectory takes no risk"
                )
            return
        before, self._preemptions = self._preemptions, count
        if before is not None and count != before:
            more = count - before if count > before else count
            if more:
                self.push(self.member, Preempted(None, more))

    def _heed_what_is_held(self, reading: EngineReading | None) -> None:
        """Tell the gate what the engine holds, by a gauge that is of now: one that shows fewer running than whose
        tokens we see is stale, or of an engine that was restarted, and would look as if prompts shared blocks."""
        if reading is None or reading.pool is None or reading.usage is None or reading.running is None:
            return
        if self.member.gate.promises.elsewhere_blocks:
            return  # what it holds is that of other gates as well, and nobody tells the shares
        seen = sum(1 for living in self.member.gate.ledger if living.seen_tokens)
        if seen and reading.running >= seen:
            held = Blocks(round(reading.usage * reading.pool.usable_blocks))
            self.push(self.member, PoolHeld(held))

    def _warn_of_fewer(self, told: int | None, usable: int | None) -> None:
        """Once for each such finding: the engine is looked at every two seconds."""
        fewer = (usable, told) if told is not None and usable is not None and usable < told else None
        if fewer is not None and fewer != self._fewer:
            log.warning("the engine has %d usable blocks, fewer than the %d it was to have", *fewer)
        self._fewer = fewer

    def _shares_prompts(self, config: GateConfig, pool: EnginePool | None) -> bool:
        """Whether the engine lets requests use one another's blocks. Without its own word only if we were told so."""
        told = None if pool is None else pool.prefix_caching
        return config.sharing is not Sharing.OFF and (self.assumed if told is None else told)


def look_of(reading: EngineReading | None, usable: int) -> Look:
    """What a reading says for `gate.fleet.readings`."""
    if reading is None:
        return Look()
    held = None if reading.usage is None else round(reading.usage * usable)
    return Look(
        held_blocks=held,
        running=reading.running,
        waiting=reading.waiting,
        deferred=reading.deferred,
        progress=reading.progress,
        started=reading.started,
        by_peak=reading.usage_is_reserved,
    )


def usable_blocks(told: int | None, pool: EnginePool | None) -> int | None:
    """What was told, but never more than the engine itself says that it has; None when nobody knows."""
    if told is None or pool is None:
        return told if pool is None else pool.usable_blocks
    return min(told, pool.usable_blocks)


def _told_sizes(layout: Layout) -> str:
    """`16 tokens`; of a layout with several groups all block sizes that they have."""
    sizes = sorted({group.block_size for group in layout.groups})
    groups = f" ({len(layout.groups)} groups of caches)" if len(layout.groups) > 1 else ""
    return f"{' and '.join(map(str, sizes))} tokens{groups}"


def why_unusable(pool: EnginePool, layout: Layout | None) -> str:
    """Why the gate cannot account for a pool that an engine told; empty if it can."""
    if pool.single_group is False and layout is None:
        # Sliding windows, state layers: a request holds blocks by rules that block_size alone does not tell.
        return "the engine has several KV cache groups: plan the model, and give the budget with --config"
    if pool.usable_blocks < 1 or not 0 < pool.block_size <= _LARGEST_BLOCK:
        return f"it says {pool.usable_blocks} usable blocks of {pool.block_size} tokens"
    return ""
