"""Decides what a running gate takes over from changed settings, and what needs a restart."""

from dataclasses import fields, replace

from kvbudget.edge.service import GateService, ServiceSettings
from kvbudget.gate.events import CapacityChanged
from kvbudget.gate.gate import GateConfig
from kvbudget.pool.groups import uniform_layout
from kvbudget.units import Blocks

# What only the decisions to come depend on. The rest is bound to sockets, counters and threads that exist.
LIVE_GATE = frozenset(
    {"policy", "max_num_seqs", "max_context", "margin_blocks", "queue_requests", "queue_tokens", "queue_ns",
     "prefill_tokens_per_step", "epsilon", "enough_answers", "worthwhile_wait_ns", "tenants", "classes"}
)  # fmt: skip
LIVE_SERVICE = frozenset({"pool_blocks", "block_size", "layout", "keys", "shadow"})


def take_over(service: GateService, wanted: ServiceSettings) -> tuple[list[str], list[str]]:
    """Apply what can change while requests run; gives (what changed, what differs but needs a restart), by name.

    Promises that were made are kept even where they exceed the new limits: nobody is admitted until they fit again.
    Who waits is judged anew, and told so if it can no longer be served. The certificate's files are read again. Raises
    BadValueError where they are none, and then changes nothing.
    """
    service.reload_certificate()
    current = service.settings
    gate_changes = _changes(current.gate, wanted.gate)
    changes = [name for name in _changes(current, wanted) if name != "gate"]
    live = [name for name in gate_changes if name in LIVE_GATE]
    live_service = [name for name in changes if name in LIVE_SERVICE]
    later = [name for name in (*gate_changes, *changes) if name not in LIVE_GATE | LIVE_SERVICE]
    if live or live_service:
        config = replace(current.gate, **{name: getattr(wanted.gate, name) for name in live})
        service.settings = replace(current, gate=config, **{name: getattr(wanted, name) for name in live_service})
        _apply(service, config)
        if "shadow" in live_service:  # otherwise what was switched by hand stays
            service.gateway.set_shadow(service.settings.shadow)
    return [*live, *live_service], later


def _apply(service: GateService, config: GateConfig) -> None:
    """The pool's own event makes the gate look at everything anew: capacity, caps, and who waits."""
    gate, settings, pool = service.gate, service.settings, service.backend.facts.pool
    ledger = gate.ledger
    gate.configure(config)
    service.reception.identities.expect(config.tenants, config.classes)
    service.reception.identities.set_keys(settings.keys)
    usable, layout = ledger.usable_blocks, ledger.layout
    if settings.pool_blocks is not None:
        usable = Blocks(settings.pool_blocks)
    elif pool is not None:
        usable = pool.usable_blocks
    if settings.layout is not None:
        layout = settings.layout
    elif settings.block_size is not None and settings.block_size != layout.groups[0].block_size:
        layout = uniform_layout(settings.block_size)
    service.gateway.push(CapacityChanged(layout, usable, gate.engine_context))


def _changes(current: object, wanted: object) -> list[str]:
    assert isinstance(current, ServiceSettings | GateConfig)  # noqa: S101 - both are dataclasses
    return [field.name for field in fields(current) if getattr(current, field.name) != getattr(wanted, field.name)]
