"""Decides what shared prefixes would save, from the block hashes of a trace."""

from collections.abc import Container, Sequence
from typing import NamedTuple

from kvbudget.pool.groups import Layout


class Sharing(NamedTuple):
    """What prefix caching can do for a trace.

    `window`: requests at once. `shared_now`: share of prompt tokens whose prefix another request of the window holds
    at the same time, so that the pool need not hold it twice. `seen_before`: share whose prefix any earlier request
    had: the most that a cache of unlimited size would hit. `saved_blocks`: blocks of one request that sharing saves on
    average; `gain`: factor by which the pool holds more requests.
    """

    window: int
    hash_tokens: int
    shared_now: float
    seen_before: float
    saved_blocks: float
    gain: float

    def lines(self) -> list[str]:
        """For people."""
        return [
            f"shared prefixes: with {self.window:,} requests at once {self.shared_now:.1%} of prompt tokens are held "
            f"by another one already: the pool holds {self.gain:.2f} times as many; not counted in the ceilings",
            f"an unlimited prefix cache would hit {self.seen_before:.1%} of prompt tokens: less prefill, no more room",
        ]


def sharing_of(
    layout: Layout,
    requests: Sequence[tuple[int, int]],
    hash_ids: Sequence[Sequence[int]],
    hash_tokens: int,
    window: int,
) -> Sharing | None:
    """Requests in the order of arrival, `window` of them at once; None where no request has hashes.

    A hash stands for `hash_tokens` tokens and all before them. Only whole ones are shared, as engines do.
    """
    window = max(1, window)
    seen: set[int] = set()
    holders: dict[int, int] = {}
    now = before = prompts = held = saved = 0
    for at, ((prompt, output), ids) in enumerate(zip(requests, hash_ids, strict=True)):
        whole = ids[: prompt // hash_tokens]
        if at >= window:
            gone = hash_ids[at - window][: requests[at - window][0] // hash_tokens]
            for one in gone:
                holders[one] -= 1
                if not holders[one]:
                    del holders[one]
        shared = _run(whole, holders) * hash_tokens
        now += shared
        before += _run(whole, seen) * hash_tokens
        prompts += prompt
        for one in whole:
            holders[one] = holders.get(one, 0) + 1
            seen.add(one)
        held += layout.blocks_for(prompt + output)
        saved += sum(shared // group.block_size for group in layout.growing)
    if not prompts or not any(hash_ids):
        return None
    saved = min(saved, held - 1)
    return Sharing(
        window=window,
        hash_tokens=hash_tokens,
        shared_now=now / prompts,
        seen_before=before / prompts,
        saved_blocks=saved / len(requests),
        gain=held / (held - saved),
    )


def _run(ids: Sequence[int], held: Container[int]) -> int:
    """Leading hashes that are held."""
    for index, one in enumerate(ids):
        if one not in held:
            return index
    return len(ids)
