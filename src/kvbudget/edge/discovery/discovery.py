"""Lets engines that sources tell of join the fleet, and drains and takes away those that they tell of no more.

A source that fails or names nobody changes nothing: it is asked again, later each time, and log and metrics say so.
Whoever leaves gets nobody new; its streams go on to their end, and only then its watch and connections are closed.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kvbudget.edge.discovery.kubernetes import EndpointWatch
from kvbudget.edge.discovery.names import EVERY_S as NAMES_EVERY_S
from kvbudget.edge.discovery.names import MISSES, NameLookup, resolve
from kvbudget.edge.discovery.roster import MOST_FOUND, Found, Roster
from kvbudget.edge.discovery.sources import DnsName, KubernetesAccess, KubernetesService, Sought
from kvbudget.edge.discovery.target_list import EVERY_S as LIST_EVERY_S
from kvbudget.edge.discovery.target_list import ListReader
from kvbudget.edge.http.tls import engine_context
from kvbudget.edge.http.upstream import Upstream, UpstreamError
from kvbudget.edge.instances.instance import Instance
from kvbudget.edge.instances.settings import InstanceSettings
from kvbudget.edge.request.gateway import Gateway
from kvbudget.errors import BadValueError, InputError, printable
from kvbudget.gate.fleet.events import Gone, Joined, Leaving

log = logging.getLogger("kvbudget.discovery")

_FIRST_PAUSE_S: Final = 1.0  # after a failure; twice as long each time
_LONGEST_PAUSE_S: Final = 30.0
_LOOK_S: Final = 0.5  # whether one that leaves is empty
DISCOVERY_METRICS: Final = {
    "kvbudget_discovery_instances": "Engines that a source tells of and that are in the fleet; those that leave aside.",
    "kvbudget_discovery_age_seconds": "Time since a source last told who is there; absent until it has.",
    "kvbudget_discovery_failures": "Answers of a source that failed or named nobody: who is known stays.",
}


class Follower(Protocol):
    """What a source is for the discovery: `follow` tells of states until it returns or fails, again and again."""

    pause_s: float

    async def follow(self, tell: Callable[[list[Found]], None]) -> None:
        """Raises UpstreamError, InputError, OSError."""

    def close(self) -> None:
        """Lets go of its connections."""


class Polled:
    """Asks at intervals."""

    def __init__(
        self, ask: Callable[[], Awaitable[list[Found]]], pause_s: float, upstream: Upstream | None = None
    ) -> None:
        self._ask = ask
        self.pause_s = pause_s
        self._upstream = upstream

    async def follow(self, tell: Callable[[list[Found]], None]) -> None:
        """One answer."""
        tell(await self._ask())

    def close(self) -> None:
        """Lets go of its connections."""
        if self._upstream is not None:
            self._upstream.close()


class Watched:
    """Is told of changes as they happen."""

    pause_s = 0.1  # a server that ends watches at once is no reason to ask it as fast as it can answer

    def __init__(self, watch: EndpointWatch) -> None:
        self._watch = watch

    async def follow(self, tell: Callable[[list[Found]], None]) -> None:
        """Until a watch ends."""
        await self._watch.follow(tell)

    def close(self) -> None:
        """Lets go of its connections."""
        self._watch.upstream.close()


class _Followed:
    """One source, and how it went."""

    def __init__(self, sought: Sought, follower: Follower, roster: Roster) -> None:
        self.sought = sought
        self.follower = follower
        self.roster = roster
        self.answered_s: float | None = None  # by the loop's clock
        self.failures = 0
        self.trouble = ""  # what was last warned of
        self.left_out = 0
        self.task: asyncio.Task[None] | None = None


class Discovery:
    """All sources of one gate. `start` begins to follow them, `close` ends that; `instances` is the service's list."""

    def __init__(
        self,
        gateway: Gateway,
        instances: list[Instance],
        make: Callable[[InstanceSettings], Instance],
        changed: Callable[[], None],
        gone: Callable[[Instance], Awaitable[None]],
    ) -> None:
        """`make`: an instance by its settings, not started; `changed`: called after one has joined, begun to leave or
        gone; `gone`: lets go of what one had, which is in the fleet no more."""
        self._gateway = gateway
        self._instances = instances
        self._make = make
        self._changed = changed
        self._gone = gone
        self._followed: list[_Followed] = []
        self._own: dict[str, tuple[Instance, _Followed]] = {}  # by url: those that were found, leaving or not
        self._taking: asyncio.Task[None] | None = None
        self._jitter = random.Random()  # noqa: S311 - spreads retries, guards nothing

    def follow(self, sought: Sought, follower: Follower, *, misses: int = 1) -> None:
        """One more source; before `start`."""
        self._followed.append(_Followed(sought, follower, Roster(misses)))

    @property
    def answered(self) -> bool:
        """Whether every source has told who is there, or failed."""
        return all(one.answered_s is not None or one.failures for one in self._followed)

    def settings_of(self, instance: Instance, sought: Sequence[Sought]) -> InstanceSettings:
        """What holds for one that was found, by other templates of the same sources."""
        url = instance.settings.url
        _, one = self._own[url]
        one.sought = next((other for other in sought if other.source == one.sought.source), one.sought)
        return one.sought.found(url)

    def start(self) -> None:
        """Begin."""
        for one in self._followed:
            name = f"discovery of {one.sought.shown_name}"
            one.task = asyncio.create_task(self._follow(one), name=name)
        self._taking = asyncio.create_task(self._take_away(), name="discovery: leaving")

    async def close(self) -> None:
        """May be called in any state. Instances are the service's to close."""
        tasks = [task for task in (self._taking, *[one.task for one in self._followed]) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in self._followed:
            one.follower.close()

    async def _follow(self, one: _Followed) -> None:
        loop = asyncio.get_running_loop()
        in_row = 0
        while True:
            began_s = loop.time()
            try:
                await one.follower.follow(lambda found: self.heard(one, found))
                in_row = 0
            except (UpstreamError, InputError, OSError) as error:
                in_row += 1
                self._failed(one, str(error))
            except Exception:  # nothing that a source says may end the following of it
                in_row += 1
                log.exception("%s failed in a way that it should not", one.sought.shown_name)
                self._failed(one, "it failed in a way that it should not")
            pause_s = one.follower.pause_s
            if in_row:
                if loop.time() - began_s > _LONGEST_PAUSE_S:
                    in_row = 1  # it had gone well for a while
                pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(in_row - 1, 10))
                pause_s *= 1 + 0.25 * self._jitter.random()
            await asyncio.sleep(pause_s)

    def _failed(self, one: _Followed, why: str) -> None:
        one.failures += 1
        if why != one.trouble:
            one.trouble = why
            kept = f"the {len(one.roster.known)} that are known stay" if one.roster.known else "nobody is known yet"
            log.warning("%s: %s; %s", one.sought.shown_name, printable(why, 300), kept)

    def heard(self, one: _Followed, found: list[Found]) -> None:
        """A source tells who is there."""
        change = one.roster.heard(found)
        if change.empty:
            self._failed(one, "it names nobody")
        else:
            if one.trouble:
                log.info("%s tells again who is there", one.sought.shown_name)
            one.trouble = ""
            one.answered_s = asyncio.get_running_loop().time()
        if change.left_out and change.left_out != one.left_out:
            log.warning("%s: %d engines beyond %d are left out", one.sought.shown_name, change.left_out, MOST_FOUND)
        one.left_out = change.left_out
        for url in change.leaving:
            self._leave(url)
        for url in change.joining:
            self._join(one, url)

    def _join(self, one: _Followed, url: str) -> None:
        fleet = self._gateway.fleet
        if url in self._own:
            instance, _ = self._own[url]
            if instance.member.leaving:
                log.info("%s is there again", instance.backend.name)
                self._gateway.push_at(instance.member, Joined())
            return
        settings = one.sought.found(url)
        known = any(other.settings.url == url for other in self._instances)
        if known or fleet.named(settings.shown_name) is not None:
            log.info("%s, of %s, is known already", settings.shown_name, one.sought.shown_name)
            return
        try:
            instance = self._make(settings)
        except BadValueError as error:
            log.warning("%s: %s cannot be an engine: %s", one.sought.shown_name, printable(url, 100), error)
            return
        log.info("%s joins, found by %s", instance.backend.name, one.sought.shown_name)
        self._own[url] = instance, one
        self._instances.append(instance)
        self._gateway.backends[instance.backend.name] = instance.backend
        self._gateway.push_at(instance.member, Joined())
        self._changed()
        instance.start()

    def _leave(self, url: str) -> None:
        own = self._own.get(url)
        if own is None or any(url in other.roster.known for other in self._followed):
            return
        instance, one = own
        if not instance.member.leaving:
            log.info("%s leaves: %s tells of it no more", instance.backend.name, one.sought.shown_name)
            self._gateway.push_at(instance.member, Leaving())
            self._changed()

    async def _take_away(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            for url, (instance, _) in list(self._own.items()):
                try:
                    await self._take_away_if_empty(url, instance)
                except Exception:
                    log.exception("%s could not be taken away", instance.backend.name)

    async def _take_away_if_empty(self, url: str, instance: Instance) -> None:
        gateway, member, backend = self._gateway, instance.member, instance.backend
        if not self._is_over(instance):
            return
        await instance.stop()
        if not member.leaving:  # it came again meanwhile
            instance.start()
            return
        if not self._is_over(instance) or instance.upstream.connections > instance.upstream.idle:
            return  # what passes by without a charge is under way still
        gateway.push_at(member, Gone())
        del self._own[url], gateway.backends[backend.name]
        self._instances.remove(instance)
        self._changed()
        await self._gone(instance)
        log.info("%s has gone", backend.name)

    def _is_over(self, instance: Instance) -> bool:
        backend = instance.backend
        return (
            instance.member.leaving
            and instance.member.empty
            and not any(flow.backend is backend for flow in self._gateway.flows)
        )

    def families(self) -> list[Metric]:
        """The metrics above."""
        now_s = asyncio.get_running_loop().time()
        texts = DISCOVERY_METRICS
        instances, age, failures = texts
        there = GaugeMetricFamily(instances, texts[instances], labels=["source"])
        since = GaugeMetricFamily(age, texts[age], labels=["source"])
        failed = CounterMetricFamily(failures, texts[failures], labels=["source"])
        for one in self._followed:
            name = one.sought.shown_name
            own = [instance for instance, by in self._own.values() if by is one and not instance.member.leaving]
            there.add_metric([name], len(own))
            failed.add_metric([name], one.failures)
            if one.answered_s is not None:
                since.add_metric([name], now_s - one.answered_s)
        return [there, since, failed]


def discovery_of(
    sought: Sequence[Sought],
    access: KubernetesAccess | None,
    authorities: str | None,
    *,
    gateway: Gateway,
    instances: list[Instance],
    make: Callable[[InstanceSettings], Instance],
    changed: Callable[[], None],
    gone: Callable[[Instance], Awaitable[None]],
) -> Discovery:
    """Ready to start. `access`: of the API server, where a source is a service of Kubernetes; `authorities`: a PEM file
    by which https lists are checked. Raises BadValueError."""
    discovery = Discovery(gateway, instances, make, changed, gone)
    for one in sought:
        source = one.source
        if isinstance(source, DnsName):
            polled = Polled(NameLookup(source, resolve).ask, NAMES_EVERY_S)
            discovery.follow(one, polled, misses=MISSES)
        elif isinstance(source, KubernetesService):
            if access is None:
                raise BadValueError(
                    f"--backend {one.shown_name}: this is no pod of a Kubernetes cluster",
                    fix="run it in one, or set KVBUDGET_KUBERNETES_API=http://127.0.0.1:8001 beside a kubectl proxy",
                )
            discovery.follow(one, Watched(EndpointWatch(access, source)))
        else:
            tls = engine_context(authorities) if source.url.startswith("https:") else None
            reader = ListReader(source, tls)
            discovery.follow(one, Polled(reader.ask, LIST_EVERY_S, reader.upstream))
    return discovery
