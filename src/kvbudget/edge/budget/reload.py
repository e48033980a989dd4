"""Decides what a running gate takes over from changed settings, and what needs a restart."""

import logging
from dataclasses import fields, replace

from kvbudget.edge.instances.settings import InstanceSettings
from kvbudget.edge.service import GateService
from kvbudget.edge.service_settings import ServiceSettings
from kvbudget.gate.gate import GateConfig

log = logging.getLogger("kvbudget")

# What only the decisions to come depend on. The rest is bound to sockets, counters and threads that exist.
LIVE_GATE = frozenset(
    {"policy", "max_num_seqs", "max_context", "margin_blocks", "queue_requests", "queue_tokens", "queue_ns",
     "prefill_tokens_per_step", "epsilon", "enough_answers", "worthwhile_wait_ns", "tenants", "classes"}
)  # fmt: skip
_COUNTED_BY = ("tokenizer", "chat_template", "template_kwargs", "image_tokens")
LIVE_SERVICE = frozenset({"pool_blocks", "block_size", "layout", "instances", "sources", "keys", "shadow",
                          "backend_api_key"})  # fmt: skip


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
    if _addresses(current) != _addresses(wanted):  # connections, watches and gates of their own
        wanted = replace(wanted, instances=current.instances)
    if [one.source for one in current.sources] != [one.source for one in wanted.sources]:
        wanted = replace(wanted, sources=current.sources)
    counting = _counted_by(current) != _counted_by(wanted)  # folders that are loaded, and who is counted for by them
    if counting:
        wanted = replace(wanted, instances=_counted_as_before(wanted, current))
    live = [name for name in gate_changes if name in LIVE_GATE]
    live_service = [name for name in changes if name in LIVE_SERVICE]
    kept = {name for name in ("instances", "sources") if getattr(wanted, name) == getattr(current, name)}
    live_service = [name for name in live_service if name not in kept]
    later = [name for name in (*gate_changes, *changes) if name not in {*live, *live_service}]
    later += ["backend.tokenizer"] if counting else []
    if current.keys and not wanted.keys:
        log.warning("no [gate.keys] are set up any more: everybody may come, without a key")
    if live or live_service:
        config = replace(current.gate, **{name: getattr(wanted.gate, name) for name in live})
        service.settings = replace(current, gate=config, **{name: getattr(wanted, name) for name in live_service})
        _apply(service, config)
        if "shadow" in live_service:  # otherwise what was switched by hand stays
            service.gateway.set_shadow(service.settings.shadow)
    return [*live, *live_service], later


def _apply(service: GateService, config: GateConfig) -> None:
    """Each pool's own event makes its gate look at everything anew: capacity, caps, and who waits."""
    service.reception.identities.expect(config.tenants, config.classes)
    service.reception.identities.set_keys(service.settings.keys)
    service.use_api_keys()
    if service.home is not None:
        service.home.member.gate.configure(config)
    for instance, settings in service.each_with_settings():
        instance.reconfigure(settings, config)
    service.fleet.share()


def _addresses(settings: ServiceSettings) -> list[tuple[str, str]]:
    return [(one.shown_name, one.url) for one in settings.each()]


def _counted_by(settings: ServiceSettings) -> list[tuple[object, ...]]:
    return [tuple(getattr(one, name) for name in _COUNTED_BY) for one in settings.each()]


def _counted_as_before(wanted: ServiceSettings, current: ServiceSettings) -> tuple[InstanceSettings, ...]:
    pairs = zip(wanted.instances, current.each(), strict=False)
    return tuple(replace(new, **{name: getattr(old, name) for name in _COUNTED_BY}) for new, old in pairs)


def _changes(current: object, wanted: object) -> list[str]:
    assert isinstance(current, ServiceSettings | GateConfig)  # noqa: S101 - both are dataclasses
    return [field.name for field in fields(current) if getattr(current, field.name) != getattr(wanted, field.name)]
