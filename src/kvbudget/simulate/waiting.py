"""Decides who of the waiting requests is next: first come first served, or by priority and arrival.

After vLLM 0.32 `v1/core/sched/request_queue.py`. A preempted request comes back to the head under fcfs; under priority
it finds its place by priority and arrival like any other.
"""

from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from heapq import heapify, heappop, heappush
from typing import Protocol

from kvbudget.simulate.engine_request import EngineRequest


class SchedulingPolicy(StrEnum):
    """vLLM's `--scheduling-policy`."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class Waiting(Protocol):
    """Requests that hold nothing and want to run."""

    def add(self, request: EngineRequest) -> None:
        """A new one."""

    def put_back(self, requests: Sequence[EngineRequest]) -> None:
        """These were taken out, or preempted, and wait again before all others, in this order."""

    def head(self) -> EngineRequest:
        """The next one, which stays."""

    def take(self) -> EngineRequest:
        """The next one, which leaves."""

    def remove(self, request: EngineRequest) -> None:
        """It waits no more."""

    def in_order(self) -> list[EngineRequest]:
        """All, next one first."""

    def __len__(self) -> int: ...


class FirstComeFirstServed:
    """A queue."""

    def __init__(self) -> None:
        self._queue: deque[EngineRequest] = deque()

    def add(self, request: EngineRequest) -> None:
        """To the end."""
        self._queue.append(request)

    def put_back(self, requests: Sequence[EngineRequest]) -> None:
        """To the beginning."""
        self._queue.extendleft(reversed(requests))

    def head(self) -> EngineRequest:
        """The first."""
        return self._queue[0]

    def take(self) -> EngineRequest:
        """The first."""
        return self._queue.popleft()

    def remove(self, request: EngineRequest) -> None:
        """Wherever it stands."""
        self._queue.remove(request)

    def in_order(self) -> list[EngineRequest]:
        """From the first to the last."""
        return list(self._queue)

    def __len__(self) -> int:
        return len(self._queue)


class ByPriority:
    """A heap over (priority, arrival, id); the smallest is next."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int, str], EngineRequest]] = []

    def add(self, request: EngineRequest) -> None:
        """Where its order puts it."""
        heappush(self._heap, (request.order, request))

    def put_back(self, requests: Sequence[EngineRequest]) -> None:
        """Where their order puts them."""
        for request in requests:
            self.add(request)

    def head(self) -> EngineRequest:
        """The smallest."""
        return self._heap[0][1]

    def take(self) -> EngineRequest:
        """The smallest."""
        return heappop(self._heap)[1]

    def remove(self, request: EngineRequest) -> None:
        """Wherever it stands."""
        self._heap = [entry for entry in self._heap if entry[1] is not request]
        heapify(self._heap)

    def in_order(self) -> list[EngineRequest]:
        """From the smallest to the largest."""
        return [request for _, request in sorted(self._heap, key=_order)]

    def __len__(self) -> int:
        return len(self._heap)


def waiting_queue(policy: SchedulingPolicy) -> Waiting:
    """An empty queue of that policy."""
    return ByPriority() if policy is SchedulingPolicy.PRIORITY else FirstComeFirstServed()


def _order(entry: tuple[tuple[int, int, str], EngineRequest]) -> tuple[int, int, str]:
    return entry[0]
