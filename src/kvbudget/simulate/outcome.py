"""Decides what is kept of a run and what it comes to: sums and histograms, so that memory does not grow with it."""

from collections import Counter, deque
from itertools import islice
from typing import Any, Final

from kvbudget.simulate.clients import Client, Ending
from kvbudget.simulate.histogram import Histogram
from kvbudget.simulate.settings import Slo
from kvbudget.units import is_digits

SCHEMA = "kvbudget.simulate/1"
OTHERS = "(others)"  # more tenants or classes than are told apart
_MOST_TENANTS: Final = 100  # that are told apart in a report, and so many classes
_MOST_OPEN: Final = 10_000  # refusals whose right time is still looked for
_MOST_LOOKED_AT: Final = 64
_LEAST_TOLD_NS: Final = 10**9  # Retry-After is in whole seconds, so nothing sooner could have been told


class Tally:
    """What became of one group of requests."""

    __slots__ = (
        "finished",
        "good",
        "good_tokens",
        "output_tokens",
        "refusals",
        "refused",
        "requests",
        "timed_out",
        "token_ns",
        "ttft",
        "useful_tokens",
    )

    def __init__(self) -> None:
        self.requests = 0
        self.token_ns = 0  # tokens x time that finished answers held from the first token on
        self.finished = self.refused = self.timed_out = 0
        self.good = 0
        self.good_tokens = 0  # output tokens of requests that met the SLO
        self.output_tokens = 0  # of all that finished
        self.useful_tokens = 0  # that had to be computed for what finished
        self.refusals: Counter[str] = Counter()  # every refusal, also of those who came back
        self.ttft = Histogram()

    def add(self, other: "Tally") -> None:
        """Count what became of another group as well."""
        self.requests += other.requests
        self.token_ns += other.token_ns
        self.finished += other.finished
        self.refused += other.refused
        self.timed_out += other.timed_out
        self.good += other.good
        self.good_tokens += other.good_tokens
        self.output_tokens += other.output_tokens
        self.useful_tokens += other.useful_tokens
        self.refusals += other.refusals
        self.ttft.add_all(other.ttft)

    def ended(self, client: Client, ending: Ending, output_tokens: int, now_ns: int, *, good: bool) -> None:
        """A client is done; `output_tokens` of a finished answer."""
        if ending is Ending.FINISHED:
            self.finished += 1
            self.output_tokens += output_tokens
            self.useful_tokens += client.request.prompt_tokens + output_tokens - 1  # nothing follows the last token
            if client.first_token_ns is not None:
                lived_ns = now_ns - client.first_token_ns
                self.token_ns += (client.request.prompt_tokens + output_tokens // 2) * lived_ns
            if good:
                self.good += 1
                self.good_tokens += output_tokens
        elif ending is Ending.REFUSED:
            self.refused += 1
        else:
            self.timed_out += 1

    def document(self, elapsed_s: float) -> dict[str, Any]:
        """Plain JSON values."""
        p50, p99 = self.ttft.percentiles((0.5, 0.99))
        return {
            "requests": self.requests,
            "finished": self.finished,
            "refused": self.refused,
            "timed_out": self.timed_out,
            "goodput_tokens_per_s": _rate(self.good_tokens, elapsed_s),
            "slo_fraction": self.good / self.requests if self.requests else None,
            "ttft_s": {"p50": _seconds(p50), "p99": _seconds(p99)},
            "held_token_s": self.token_ns / 1e9,
            "refusals": dict(sorted(self.refusals.items())),
        }


class Told:
    """One refusal that told a time; `open` while the right one is still looked for."""

    __slots__ = ("needed_tokens", "open", "refused_ns", "told_ns")

    def __init__(self, needed_tokens: int, told_ns: int, refused_ns: int) -> None:
        self.needed_tokens = needed_tokens
        self.told_ns = told_ns
        self.refused_ns = refused_ns
        self.open = True


class RetryTimes:
    """How honest Retry-After was.

    Of those who came back at the told time, how many were let in at once, or from the queue. And in hindsight: the told
    time beside the time until somebody of its tenant and class who came unannounced, and needed as much or more, was
    let in at once, or it came back itself and was (an upper bound of the right time: it takes somebody to come).
    """

    __slots__ = (
        "_known",
        "_of",
        "_told",
        "admitted",
        "admitted_at_once",
        "hindsight",
        "returned",
        "told",
        "told_known",
    )

    def __init__(self) -> None:
        self.told = Histogram()
        self.told_known = Histogram()  # of those whose hindsight is known
        self.hindsight = Histogram()
        self.returned = 0
        self.admitted = 0
        self.admitted_at_once = 0
        self._of: dict[int, list[Told]] = {}  # by client
        self._told: dict[tuple[str, int], deque[Told]] = {}  # by tenant and class, as they came
        self._known = 0

    def was_told(self, client: Client, told_ns: int, now_ns: int) -> None:
        """A refusal told a time."""
        self.told.add(told_ns)
        if self.told.total - self._known <= _MOST_OPEN:
            told = Told(_needed(client), told_ns, now_ns)
            self._of.setdefault(client.number, []).append(told)
            self._told.setdefault(_account(client), deque()).append(told)

    def came(self, client: Client, now_ns: int, *, as_told: bool, at_once: bool) -> None:
        """A try has come, at the time that the last refusal told or unannounced; it was let in at once or was not."""
        self.returned += as_told
        if not at_once:
            return
        self.admitted_at_once += as_told
        own = self._of.pop(client.number, ())
        for told in own:
            self._is_known(told, now_ns)
        if as_told:
            return  # room was kept for it, and for nobody else
        # Whoever was refused before and needs no more could have come in its stead: one of them, the first.
        refused, needed_tokens = self._told.get(_account(client)), _needed(client)
        if refused is None:
            return
        while refused and not refused[0].open:
            refused.popleft()
        for told in islice(refused, _MOST_LOOKED_AT):
            if told.open and told.needed_tokens <= needed_tokens:
                self._is_known(told, now_ns)
                break

    def document(self) -> dict[str, Any]:
        """Plain JSON values."""
        told, hindsight = self.told_known.percentile(0.5), self.hindsight.percentile(0.5)
        return {
            "told": self.told.total,
            "told_s": {"p50": _seconds(self.told.percentile(0.5))},
            "hindsight_s": {"p50": _seconds(hindsight)},
            "hindsight_known": self._known,
            "told_to_hindsight": told / hindsight if told is not None and hindsight else None,
            "returned": self.returned,
            "admitted": self.admitted,
            "admitted_at_once": self.admitted_at_once,
            "share_at_once": self.admitted_at_once / self.returned if self.returned else None,
        }

    def _is_known(self, told: Told, now_ns: int) -> None:
        if told.open and now_ns > told.refused_ns:
            told.open = False
            self._known += 1
            self.told_known.add(told.told_ns)
            self.hindsight.add(max(_LEAST_TOLD_NS, now_ns - told.refused_ns))


def _needed(client: Client) -> int:
    return client.request.prompt_tokens + client.request.max_new_tokens


def _account(client: Client) -> tuple[str, int]:
    return client.request.tenant, client.request.priority


class Result:
    """One finished run. Token counts are of the engine's work; `wasted_tokens` were computed for clients who left, or
    past an answer's end (asynchronous scheduling)."""

    def __init__(self, policy: str, slo: Slo) -> None:
        self.policy = policy
        self.slo = slo
        self.requests = 0
        self.tenants: dict[str, Tally] = {}
        self.classes: dict[str, Tally] = {}  # by priority
        self.gaps = Histogram()
        self.stalled_answers = 0  # with a gap over the SLO
        self.waits = Histogram()  # in the gate's queue, of those that were forwarded
        self.refusals: Counter[str] = Counter()  # as each tally's
        self.retry_times = RetryTimes()
        self.tries = 0
        self.preemptions = 0
        self.preempted_requests = 0
        self.scheduled_tokens = 0
        self.recomputed_tokens = 0
        self.wasted_tokens = 0
        self.cached_tokens = 0  # of prompts of finished answers, that need not be computed
        self.steps = 0
        self.held_block_ns = 0
        self.usable_blocks = 0
        self.first_ns = 0
        self.last_ns = 0
        self.last_arrival_ns = 0
        self.prompt_tokens = 0  # of the load
        self.promised_at_end = 0
        self.oracle_ratio: float | None = None

    @property
    def all(self) -> Tally:
        """Of every tenant."""
        whole = Tally()
        for tally in self.tenants.values():
            whole.add(tally)
        return whole

    def arrived(self, client: Client) -> None:
        """A request of the load is there."""
        self.requests += 1
        self.last_arrival_ns = client.request.arrival_ns
        self.prompt_tokens += client.request.prompt_tokens
        for tally in self._tallies(client):
            tally.requests += 1

    def first_token(self, client: Client, now_ns: int) -> None:
        """A client has its first token."""
        for tally in self._tallies(client):
            tally.ttft.add(now_ns - client.first_sent_ns)

    def refused(self, client: Client, reason: str) -> None:
        """A try of a client was refused; it may come back."""
        self.refusals[reason] += 1
        for tally in self._tallies(client):
            tally.refusals[reason] += 1

    def ended(self, client: Client, ending: Ending, now_ns: int, output_tokens: int = 0) -> None:
        """A client is done."""
        self.stalled_answers += client.late_gap
        self.last_ns = max(self.last_ns, now_ns)
        good = ending is Ending.FINISHED and self._is_good(client)
        for tally in self._tallies(client):
            tally.ended(client, ending, output_tokens, now_ns, good=good)

    @property
    def elapsed_s(self) -> float:
        """From the first arrival to the end of the last request."""
        return (self.last_ns - self.first_ns) / 1e9

    @property
    def goodput_tokens_per_s(self) -> float:
        """Output tokens of answers within the SLO, per second."""
        return _rate(self.all.good_tokens, self.elapsed_s)

    @property
    def pool_use_mean(self) -> float | None:
        """Mean share of the pool that was held, over the whole run."""
        whole = self.usable_blocks * (self.last_ns - self.first_ns)
        # As floats: compiled code divides whole numbers beyond 2**53 in another way, and the last digit would differ.
        return float(self.held_block_ns) / float(whole) if whole else None

    def document(self) -> dict[str, Any]:
        """Plain JSON values; percentiles are None when nothing was measured."""
        elapsed_s = self.elapsed_s
        wait50, wait99 = self.waits.percentiles((0.5, 0.99))
        document: dict[str, Any] = {"schema": SCHEMA, "policy": self.policy, **self.all.document(elapsed_s)}
        document |= {
            "gap_s": {"p99": _seconds(self.gaps.percentile(0.99))},
            "preemptions": self.preemptions,
            "preempted_requests": self.preempted_requests,
            "recomputed_tokens": self.recomputed_tokens,
            "pool_use_mean": self.pool_use_mean,
            "oracle_ratio": self.oracle_ratio,
            "output_tokens_per_s": _rate(self.all.output_tokens, elapsed_s),
            "scheduled_tokens": self.scheduled_tokens,
            "wasted_tokens": self.wasted_tokens,
            "cached_tokens": self.cached_tokens,
            "stalled_answers": self.stalled_answers,
            "wait_s": {"p50": _seconds(wait50), "p99": _seconds(wait99)},
            "tries": self.tries,
            "retry_after": self.retry_times.document(),
            "elapsed_s": elapsed_s,
            "steps": self.steps,
        }
        for kind, tallies in (("tenants", self.tenants), ("classes", self.classes)):
            document[kind] = {name: tallies[name].document(elapsed_s) for name in sorted(tallies, key=_in_order)}
        return document

    def _is_good(self, client: Client) -> bool:
        if client.late_gap or client.first_token_ns is None:
            return False
        limit_ns = self.slo.ttft_ns
        return limit_ns is None or client.first_token_ns - client.first_sent_ns <= limit_ns

    def _tallies(self, client: Client) -> tuple[Tally, Tally]:
        """Of its tenant and of its class."""
        request = client.request
        return _tally(self.tenants, request.tenant), _tally(self.classes, str(request.priority))


def _tally(tallies: dict[str, Tally], name: str) -> Tally:
    tally = tallies.get(name)
    if tally is None:
        if len(tallies) >= _MOST_TENANTS:
            name = OTHERS
        tally = tallies.setdefault(name, Tally())
    return tally


def _in_order(name: str) -> tuple[int, str]:
    """Classes by urgency, tenants by name."""
    number = name.removeprefix("-")
    return (int(name) if is_digits(number) and len(number) <= 12 else 0, name)


def _rate(tokens: int, elapsed_s: float) -> float:
    return tokens / elapsed_s if elapsed_s > 0 else 0.0


def _seconds(value_ns: int | None) -> float | None:
    return None if value_ns is None else value_ns / 1e9
