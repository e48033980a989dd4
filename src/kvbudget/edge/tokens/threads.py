"""Decides how long a count in a thread may take before the bound of the request stands in for it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from kvbudget.edge.openai.ask import Ask
from kvbudget.edge.tokens.bound import ThreadedBoundCounter
from kvbudget.edge.tokens.count import Count

THREADS: Final = 2
DEADLINE_S: Final = 0.5


class CountingThreads:
    """Threads for the counts of one tokenizer, and `bound` for what they do not count, or not in time."""

    def __init__(self, deadline_s: float) -> None:
        self.bound = ThreadedBoundCounter()
        self._deadline_s = deadline_s
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="count")

    async def count(self, ask: Ask, work: Callable[[], Count]) -> Count:
        """What `work` counts, or the bound of `ask` once the deadline has passed. What has begun ends by itself."""
        try:
            # Cancelled on the deadline: work that has not begun never does.
            return await asyncio.wait_for(asyncio.wrap_future(self._threads.submit(work)), self._deadline_s)
        except TimeoutError:
            bound = self.bound.count(ask)
            return bound if isinstance(bound, Count) else await bound

    def close(self) -> None:
        """Let the threads go; counts under way end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.bound.close()
