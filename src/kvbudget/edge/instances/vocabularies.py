"""Decides by which vocabulary each instance counts, and makes the counters of a gate; carries counts to the fleet."""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson

from kvbudget.edge.http.upstream import UpstreamError
from kvbudget.edge.instances.backend import Backend
from kvbudget.edge.instances.instance import Instance
from kvbudget.edge.openai.ask import Ask
from kvbudget.edge.request.renaming import renamed
from kvbudget.edge.tokens import counting
from kvbudget.edge.tokens.by_model import CounterByModel, Vocabulary
from kvbudget.edge.tokens.count import Count, Counter, CountFailedError
from kvbudget.edge.tokens.counting import CountingSettings, counter_of, heed_context
from kvbudget.edge.tokens.engine import Post
from kvbudget.gate.events import Counted
from kvbudget.gate.fleet.fleet import Fleet
from kvbudget.gate.fleet.member import Member
from kvbudget.units import Tokens

if TYPE_CHECKING:
    from kvbudget.edge.request.flow import Flow
    from kvbudget.gate.gate import Gate

log = logging.getLogger("kvbudget.tokens")

_COUNT_TIMEOUT_S = 10.0
_ENGINE = "engine"


def counters_of(instances: Sequence[Instance], fleet: Fleet, tokenizer: str, settings: CountingSettings) -> Counter:
    """The counter of a gate: one for all its instances where they count alike, else one for each vocabulary.

    `tokenizer`, `settings`: for instances that say nothing themselves. Loading a folder takes seconds. Raises
    BadConfigError.
    """
    made: dict[object, Counter] = {}
    counters: dict[str, Counter] = {}
    for instance in instances:
        vocabulary, own = _vocabulary(instance, tokenizer, settings)
        counts_here = vocabulary.tokenizer == _ENGINE and len(instances) > 1
        key: object = instance if counts_here else vocabulary  # engines are asked each for itself
        if key not in made:
            alike = [one for one in instances if _vocabulary(one, tokenizer, settings)[0] == vocabulary]
            made[key] = counter_of(vocabulary.tokenizer, own, _post([instance] if counts_here else alike, fleet))
        counters[instance.backend.name] = made[key]
        instance.member.vocabulary = vocabulary
    return made.popitem()[1] if len(made) == 1 else CounterByModel(fleet.members, counters)


def counter_of_all(instances: Sequence[Instance], fleet: Fleet, tokenizer: str, settings: CountingSettings) -> Counter:
    """The same where instances come and go, and count alike: whoever is there is asked."""
    return counter_of(tokenizer, settings, _post(instances, fleet))


def heed_model(instance: Instance) -> None:
    """After a look at an engine that counts for itself: those of one model count alike."""
    vocabulary, models = instance.member.vocabulary, instance.backend.facts.models
    if isinstance(vocabulary, Vocabulary) and vocabulary.tokenizer == _ENGINE and models:
        # The first that it lists is the model itself; adapters follow.
        instance.member.vocabulary = vocabulary._replace(of=models[0])


def heed_contexts(counter: Counter, contexts: Sequence[Tokens]) -> None:
    """What no engine can take need not be tokenized."""
    counters = counter.counters.values() if isinstance(counter, CounterByModel) else [counter]
    for one in counters:
        heed_context(one, max(contexts))


def counting_state(counter: Counter) -> dict[str, object]:
    """For the state page, as `counting.state_of`; of several counters each by itself."""
    if not isinstance(counter, CounterByModel):
        return counting.state_of(counter)
    each = {instance: counting.state_of(one) for instance, one in counter.counters.items()}
    return {"counts": counter.name, "instances": each}


def counts_of(
    ask: Ask, counted: Count, gate: "Gate", keys: Callable[[Count], tuple[int, ...]]
) -> dict[object, Counted] | None:
    """A count by several vocabularies, as the fleet takes it. `keys`: of what a prompt begins with."""
    if counted.by_vocabulary is None:
        return None
    found: dict[object, Counted] = {}
    for vocabulary, count in counted.by_vocabulary.items():
        prompts = count.prompt_tokens if ask.charge is None else ask.charge(ask, count.prompt_tokens, gate)
        exact = count.exact and not (ask.charge is not None and ask.inexact)
        paced = ask.paced and exact and len(prompts) == 1
        found[vocabulary] = Counted(prompts, exact, paced, keys(count) if ask.charge is None else ())
    return found


def counted_at(flow: "Flow", member: Member) -> None:
    """A flow goes to an instance: from here on it has as many prompt tokens as that one makes of it."""
    arrived = flow.arrived
    if arrived is None or arrived.counts is None:
        return
    own, first = arrived.counts[member.vocabulary], next(iter(arrived.counts))
    flow.paced = own.paced
    if member.vocabulary == first and arrived.counts[first].exact:
        return  # as it was counted
    flow.token_ids = None  # those of another vocabulary
    charged = flow.ask is not None and flow.ask.charge is not None
    flow.exact = own.exact and not charged  # what is charged is nothing to compare the engine's usage with
    flow.prompt_tokens = sum(own.prompts)
    if flow.record is not None:
        flow.record.prompt_tokens, flow.record.exact = flow.prompt_tokens, flow.exact


def _vocabulary(instance: Instance, tokenizer: str, settings: CountingSettings) -> tuple[Vocabulary, CountingSettings]:
    """What an instance says of itself; what belongs to another tokenizer does not hold for its own."""
    told = instance.settings
    own = settings
    if told.tokenizer is not None:
        tokenizer = told.tokenizer
        own = replace(settings, chat_template=told.chat_template, template_kwargs=dict(told.template_kwargs))
    if told.image_tokens is not None:
        own = replace(own, image_tokens=told.image_tokens)
    kwargs = json.dumps(own.template_kwargs, sort_keys=True)
    of = instance.backend.name if tokenizer == _ENGINE else ""
    return Vocabulary(tokenizer, own.chat_template, kwargs, own.image_tokens, of), own


def _post(alike: Sequence[Instance], fleet: Fleet) -> Post:
    """Asks an engine of those that count alike: one that is up and serves the model, if there is any."""

    async def post(path: str, body: bytes) -> tuple[int, bytes]:
        backend, body = _asked(alike, fleet, body)
        headers = [(b"content-type", b"application/json"), *backend.credentials]
        try:
            answer = await backend.upstream.request(b"POST", path.encode(), headers, body, _COUNT_TIMEOUT_S)
        except UpstreamError as error:
            if error.kind == "unreachable":
                backend.found_down()
            raise CountFailedError(f"the engine did not count: {error}") from error
        return answer.status, answer.body

    return post


def _asked(alike: Sequence[Instance], fleet: Fleet, body: bytes) -> tuple[Backend, bytes]:
    if fleet.only is not None:
        return alike[0].backend, body
    model = orjson.loads(body).get("model")
    serving = [one for one in alike if one.member.serves(model)] or alike
    up = [one for one in serving if one.member.in_service]
    if not up and not any(one.member.in_service for one in alike):
        raise CountFailedError("no engine that counts for this model is up")
    backend = (up or [one for one in alike if one.member.in_service])[0].backend
    return backend, body if model is None else renamed(body, model, backend.own_name(model))
