"""Decides what the JSON documents of several workers say together: whole figures of all, and each one's own beside."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

_SHOWN_QUEUE: Final = 50
# Of an instance, as one worker tells of it: what each has for itself. The rest all see alike.
_SUMMED: Final = ("promised_blocks", "reservations", "sequences", "waiting")
_ANY: Final = ("draining", "ejected")
_RANKS: Final = {"healthy": 1, "insufficient_data": 2}  # all others come before

Document = dict[str, Any]


def state(each: Sequence[tuple[int, Document]]) -> Document:
    """`/v1/state` of all: the pool of the first instance with what all have promised of it, and under `workers` each by
    itself."""
    first = each[0][1]
    all_of_them = [document for _, document in each]
    pool = dict(first["pool"])
    # Each tells of the instance that it knows first; where they are found, that is not the same one at all.
    own = [one for one in all_of_them if one["pool"]["instance"] == pool["instance"]]
    pool["reserved_blocks"] = sum(one["pool"]["reserved_blocks"] for one in own)
    pool["peak_sum_blocks"] = sum(one["pool"]["peak_sum_blocks"] for one in own)
    pool["capacity_blocks"] = pool["usable_blocks"] - pool["margin_blocks"]
    pool["free_blocks"] = max(0, pool["capacity_blocks"] - pool["reserved_blocks"])
    held = [one["pool"]["held_blocks"] for one in own if one["pool"]["held_blocks"] is not None]
    pool["held_blocks"] = max(held, default=None)
    waiting = [waiting for one in own for waiting in one["queue"]["next"]]
    return {
        **first,
        "pool": pool,
        "shadow": all(one["shadow"] for one in all_of_them),
        "draining": any(one["draining"] for one in all_of_them),
        "reserved_blocks_by_tenant": _sums(one["reserved_blocks_by_tenant"] for one in own),
        "reservations": sum(one["reservations"] for one in own),
        "sequences": sum(one["sequences"] for one in own),
        "queue": {
            "requests": sum(one["queue"]["requests"] for one in own),
            "tokens": sum(one["queue"]["tokens"] for one in own),
            "next": sorted(waiting, key=lambda one: -one["waited_ms"])[:_SHOWN_QUEUE],
        },
        "instances": instances([one["instances"] for one in all_of_them]),
        "workers": [{"worker": number, **document} for number, document in each],
    }


def instances(each: Sequence[list[Document]]) -> list[Document]:
    """What all workers have at each instance, by its name, in the order in which they name them."""
    by_name: dict[str, list[Document]] = {}
    for one in [one for of_worker in each for one in of_worker]:
        by_name.setdefault(one["name"], []).append(one)
    found: list[Document] = []
    for own in by_name.values():
        sums = {name: sum(one[name] for one in own) for name in _SUMMED}
        flags = {name: any(one[name] for one in own) for name in _ANY}
        found.append({**own[0], **sums, **flags, "up": all(one["up"] for one in own)})
    return found


def findings(each: Sequence[tuple[int, Document]]) -> Document:
    """Of each instance the judgement of one worker: of the first that finds something, else that finds nothing."""
    by_name: dict[str, Document] = {}
    for number, document in each:
        for one in document["instances"]:
            known = by_name.get(one["instance"])
            if known is None or _RANKS.get(one["verdict"], 0) < _RANKS.get(known["verdict"], 0):
                by_name[one["instance"]] = {**one, "worker": number}
    return {**each[0][1], "instances": list(by_name.values())}


def _sums(each: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in each:
        for name, value in one.items():
            total[name] = total.get(name, 0) + value
    return total
