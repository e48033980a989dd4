"""Whose turn it is among those who wait: by class, in a class by least virtual service, in a tenant by arrival.

No class starves another: whoever has waited AGE_NS counts as one of the most urgent class that waits, if
PER_LESS_URGENT of more urgent ones were let in since the last of its class.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final

AGE_NS: Final = 2 * 10**9
# So many of the more urgent for one of a less urgent class that does not get its turn otherwise: what those pay for it.
PER_LESS_URGENT: Final = 10
MOST_CLASSES: Final = 64  # numbers come from outside; beyond that, whichever asked longest ago starts anew

Key = tuple[int, int]  # (priority, arrival number)


class Line:
    """Who waits in one class."""

    __slots__ = ("by_tenant", "heap", "listed", "oldest")

    def __init__(self) -> None:
        self.by_tenant: dict[str, OrderedDict[Key, None]] = {}
        self.heap: list[tuple[float, str]] = []  # (virtual service, tenant); what `listed` does not say is out of date
        self.listed: dict[str, float] = {}
        self.oldest: OrderedDict[Key, tuple[str, int]] = OrderedDict()  # as they came: (tenant, since when)


class Turns:
    """Keys of all who wait. `virtual_of` tells a tenant's virtual service; not `fair`: all tenants are one."""

    def __init__(self, virtual_of: Callable[[str], float], *, fair: bool = True) -> None:
        self._virtual_of = virtual_of
        self._fair = fair
        self._lines: dict[int, Line] = {}
        # By class, of those that were let in: more urgent ones since the last of its own.
        self._passed: OrderedDict[int, int] = OrderedDict()

    def let_in(self, priority: int) -> None:
        """One of this class was."""
        passed = self._passed
        if len(passed) == 1 and passed.get(priority) == 0:
            return  # as nearly always: there is no other, and was none
        for other in passed:
            if other > priority:
                passed[other] += 1
        if priority in passed:
            passed[priority] = 0

    def asks(self, priority: int) -> None:
        """One of this class came."""
        passed = self._passed
        if len(passed) == 1 and priority in passed:
            return  # as nearly always
        passed.setdefault(priority, 0)
        passed.move_to_end(priority)
        if len(passed) > MOST_CLASSES:
            passed.popitem(last=False)

    def is_due(self, priority: int) -> bool:
        """Whether it is this class's turn once somebody of it has waited AGE_NS."""
        return self._passed.get(priority, 0) >= PER_LESS_URGENT

    def urgent_of(self, priority: int) -> int:
        """The class in which the next of this class counts: the most urgent that waits, if it is due."""
        return min([priority, *self._lines]) if self.is_due(priority) else priority

    def push(self, key: Key, tenant: str, since_ns: int) -> None:
        """It waits, behind all of its tenant and class that have a smaller number."""
        if not self._fair:
            tenant = ""
        line = self._lines.get(key[0])
        if line is None:
            line = self._lines[key[0]] = Line()
        _put(line.oldest, key, (tenant, since_ns))
        keys = line.by_tenant.get(tenant)
        if keys is None:
            keys = line.by_tenant[tenant] = OrderedDict()
            self._list(line, tenant)
        _put(keys, key, None)

    def remove(self, key: Key) -> None:
        """It waits no more."""
        line = self._lines[key[0]]
        tenant, _ = line.oldest.pop(key)
        keys = line.by_tenant[tenant]
        del keys[key]
        if not keys:
            del line.by_tenant[tenant], line.listed[tenant]
            if not line.by_tenant:
                del self._lines[key[0]]

    def moved(self, tenant: str) -> None:
        """Its virtual service became less; that it became more is seen without being told."""
        for line in self._lines.values():
            if tenant in line.by_tenant:
                self._list(line, tenant)

    def waits(self, tenant: str, priority: int) -> bool:
        """Whether it has somebody waiting in this class or a more urgent one."""
        return any(tenant in line.by_tenant for waiting, line in self._lines.items() if waiting <= priority)

    def youngest(self, tenant: str, priority: int) -> Key:
        """Whom of this tenant and class to refuse if somebody must be."""
        return next(reversed(self._lines[priority].by_tenant[tenant]))

    def behind(self, key: Key) -> Iterator[Key]:
        """Who came after it, of its tenant and class, as they came. Leave it before anybody is pushed or removed."""
        line = self._lines[key[0]]
        return (other for other in line.by_tenant[line.oldest[key][0]] if other > key)

    @property
    def is_one_line(self) -> bool:
        """Whether all who wait are of one tenant and class: then `order` is the first that came, and `behind` that one
        are all others."""
        return len(self._lines) == 1 and all(len(line.by_tenant) == 1 for line in self._lines.values())

    def order(self, now_ns: int) -> Generator[tuple[Key, int], None, None]:
        """(key, class in which it counts): who is due of less urgent classes, then the first of every tenant, class by
        class.

        Close it before anybody is pushed or removed. Costs O(log n) for each that is taken.
        """
        priorities = sorted(self._lines)
        for other in priorities[1:]:
            key, (_, since_ns) = next(iter(self._lines[other].oldest.items()))
            if self.is_due(other) and now_ns - since_ns >= AGE_NS:
                yield key, priorities[0]
        for priority in priorities:
            yield from self._heads(self._lines[priority], priority)

    def _heads(self, line: Line, priority: int) -> Generator[tuple[Key, int], None, None]:
        taken: list[tuple[float, str]] = []
        heap, listed = line.heap, line.listed
        try:
            while heap:
                virtual, tenant = heap[0]
                if listed.get(tenant) != virtual or (taken and taken[-1] == heap[0]):
                    heapq.heappop(heap)
                    continue
                really = self._virtual_of(tenant)
                if really > virtual:
                    listed[tenant] = really
                    heapq.heapreplace(heap, (really, tenant))
                    continue
                taken.append(heapq.heappop(heap))
                yield next(iter(line.by_tenant[tenant])), priority
        finally:
            for entry in taken:
                heapq.heappush(heap, entry)

    def _list(self, line: Line, tenant: str) -> None:
        virtual = self._virtual_of(tenant)
        line.listed[tenant] = virtual
        heapq.heappush(line.heap, (virtual, tenant))
        if len(line.heap) > 2 * len(line.listed) + 64:  # the heap forgets lazily; do not let it outgrow the line
            line.heap = [(listed, name) for name, listed in line.listed.items()]
            heapq.heapify(line.heap)


def _put(keys: OrderedDict[Key, Any], key: Key, value: object) -> None:
    """Behind all smaller ones; nearly always that is the end, and otherwise costs a walk."""
    last = next(reversed(keys), key)
    keys[key] = value
    if key < last:
        for later in sorted(other for other in keys if other > key):
            keys.move_to_end(later)
