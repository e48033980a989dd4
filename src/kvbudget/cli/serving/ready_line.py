"""Decides what a gate says of itself once it serves: where it listens, what it found, and what it waits for.

A gate listens before it is ready where its engine is away, or a ledger that gates share gives no room yet. Then it says
what it waits for, and once more when it is ready.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kvbudget.errors import printable

if TYPE_CHECKING:  # --help must work without the libraries of the gate
    from kvbudget.edge.instances.instance import Instance
    from kvbudget.edge.service import GateService

_LOOK_S: Final = 0.05
_ENGINE, _LEDGER = "engine", "shared ledger"

Ready = Mapping[str, Any]
"""What is so, as `--json` tells it."""


class Told(NamedTuple):
    """For people: how it stands, and what to try first."""

    standing: str
    hints: str


class ReadyLine:
    """On stdout: to programs one JSON document, to people more than a line."""

    def __init__(self, told: Callable[[Ready], Told], *, as_json: bool) -> None:
        self._told = told
        self._as_json = as_json
        self._was_told = False

    def tell(self, ready: Ready) -> None:
        """How it stands: first, and again when what it waited for has come."""
        told = self._told(ready)
        if self._as_json and self._was_told:
            logging.getLogger("kvbudget").info("%s", told.standing.partition("\n")[0])
        elif self._as_json:
            print(json.dumps(ready), flush=True)
        else:
            print(printable(told.standing if self._was_told else f"{told.standing}\n{told.hints}"), flush=True)
        self._was_told = True


def ready_of(service: "GateService") -> dict[str, object]:
    """How a gate stands now."""
    from kvbudget.edge.control.instances_api import problem_of

    facts, gate = service.backend.facts, service.gate
    problem = problem_of(service.gateway)
    engine_up = any(instance.member.gate.backend_up for instance in service.instances)
    return {
        "ready": not problem,
        "gate": service.url,
        "admin": service.admin_url,
        "backend": service.backend.url,
        "backend_up": service.fleet.backend_up,  # of any of them: whoever is away is told of by itself
        "problem": problem,
        "waits_for": "" if not problem else _LEDGER if engine_up else _ENGINE,
        "model": facts.models[0] if facts.models else "",
        "usable_blocks": gate.ledger.usable_blocks,
        "block_size": gate.ledger.layout.groups[0].block_size,
        "max_context": gate.max_context,
        "max_num_seqs": gate.config.max_num_seqs,
        "policy": gate.config.policy.value,
        "counter": service.reception.counter.name,
        "ledger": service.ledger_address or "memory",
        "instances": [_chosen(instance) for instance in service.instances],
    }


async def tell_when_ready(look: Callable[[], Ready], tell: Callable[[Ready], None]) -> None:
    """Once, as soon as what `look` sees is ready."""
    while not (ready := look())["ready"]:  # noqa: ASYNC110 - at the start alone: the data path pays nothing for it
        await asyncio.sleep(_LOOK_S)
    tell(ready)


def told_by_gate(ready: Ready) -> Told:
    """Of a gate that listens for clients."""
    gate, admin, model = ready["gate"], ready["admin"], ready["model"]
    ask = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 32}
    body = json.dumps({"model": model} | ask if model else ask)
    standing = f"kvbudget {verb_of(ready)}: gate {gate} before {urls_of(ready)}, admin {admin}"
    if "workers" in ready:
        standing += f"\n  {ready['workers']} worker processes share port and pool"
    return Told(
        standing + found_by(ready),
        f"  try it: curl {gate}/v1/chat/completions -H 'content-type: application/json' -d '{body}'\n"
        f"  look:   curl {admin}/v1/state\n"
        f"  pages:  {page_of(admin)} in a browser",
    )


def verb_of(ready: Ready) -> str:
    """Whether it is ready, or what it waits for."""
    return f"waits for its {ready['waits_for']}" if ready["waits_for"] else "is ready"


def found_by(ready: Ready) -> str:
    """Lines: what is known of each engine, and of a ledger that several gates share."""
    lines = f"\n  engine: {_state_of(ready)}"
    if ready["waits_for"] == _LEDGER:
        return f"{lines}\n  ledger: {ready['ledger']}: {ready['problem']}"
    own = ready["ledger"] == "memory" or "workers" in ready
    return lines if own else f"{lines}\n  ledger: {ready['ledger']}, shared"


def _state_of(ready: Ready) -> str:
    if len(ready["instances"]) > 1:
        return "\n  engine: ".join(_told_of(instance) for instance in ready["instances"])
    if ready["waits_for"] == _ENGINE:
        return f"NOT UP YET ({ready['problem']}); requests get 503 until it is"
    return (
        f"pool of {ready['usable_blocks']} blocks x {ready['block_size']} tokens, context cap {ready['max_context']}, "
        f"at most {ready['max_num_seqs']} sequences, policy {ready['policy']}, counting by {ready['counter']}"
    )


def urls_of(ready: Ready) -> str:
    """The engines' addresses."""
    return " and ".join([instance["url"] for instance in ready["instances"]] or [ready["backend"]])


def page_of(admin_url: str) -> str:
    """The address to open on this machine; one that listens on all addresses is no address to go to."""
    for every, own in (("//0.0.0.0:", "//127.0.0.1:"), ("//[::]:", "//[::1]:")):
        admin_url = admin_url.replace(every, own)
    return f"{admin_url}/"


def _chosen(instance: "Instance") -> dict[str, object]:
    """What the gate goes by for one engine, and whose word it is."""
    gate, facts, settings = instance.member.gate, instance.backend.facts, instance.settings
    own = facts.pool
    return {
        "name": instance.backend.name,
        "url": instance.backend.url,
        "up": gate.backend_up,
        "problem": facts.problem,
        "engine": facts.engine,
        "models": list(facts.models),
        "usable_blocks": gate.ledger.usable_blocks,
        "usable_blocks_from": "the engine" if own and settings.pool_blocks != gate.ledger.usable_blocks else "settings",
        "block_size": gate.ledger.layout.groups[0].block_size,
        "max_context": gate.max_context,
        "max_context_from": "the engine" if gate.max_context == gate.engine_context else "the pool or settings",
        "max_num_seqs": gate.config.max_num_seqs,
    }


def _told_of(chosen: Ready) -> str:
    if not chosen["up"]:
        return f"{chosen['name']} is NOT UP YET ({chosen['problem']}); no request goes there until it is"
    name, engine, models = chosen["name"], chosen["engine"] or "unknown engine", ", ".join(chosen["models"])
    return (
        f"{name} ({engine}, {models}): pool of {chosen['usable_blocks']} blocks x {chosen['block_size']} tokens, "
        f"context cap {chosen['max_context']}, at most {chosen['max_num_seqs']} sequences"
    )
