"""One process of `run.py`: as many reserve+release pairs, or calls, as it can, or so many a second.

Prints `ready`, waits for a line, works, and prints one JSON document: what was done, its CPU time, and latencies.

    worker.py WAY --url URL --seconds S [--rate N] [--flights N] [--pool-blocks N] [--number N]
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import uvloop

from kvbudget.edge.bank.redis_store import RedisStore
from kvbudget.edge.bank.script import SCRIPT, SHA, arguments, keys_of
from kvbudget.edge.bank.urls import address_of
from kvbudget.edge.sharing.lending import Lending
from kvbudget.gate.bank.branch import Branch
from kvbudget.gate.bank.terms import Call, Line
from kvbudget.gate.commands import Forward, Reject
from kvbudget.gate.config import GateConfig
from kvbudget.gate.events import Arrived, Ended, Event
from kvbudget.gate.gate import Gate
from kvbudget.gate.policies import Policy
from kvbudget.gate.refusing.refusals import Outcome
from kvbudget.pool.groups import uniform_layout
from kvbudget.units import Blocks, Tokens

LEASE_NS = 8 * 10**9
BLOCKS_EACH = 64  # of a request
# What a gateway without slices does: two scripts for each request, as the peers have them.
RESERVE = """
local held = tonumber(redis.call('HGET', KEYS[1], 'held') or '0')
if held + tonumber(ARGV[1]) > tonumber(ARGV[2]) then return 0 end
redis.call('HINCRBY', KEYS[1], 'held', ARGV[1])
redis.call('ZADD', KEYS[2], ARGV[4], ARGV[3])
return 1
"""
RELEASE = """
if redis.call('ZREM', KEYS[2], ARGV[2]) == 1 then redis.call('HINCRBY', KEYS[1], 'held', -ARGV[1]) end
return 1
"""
Pair = Callable[[int], Awaitable[None]]


class GatePairs:
    """A gate with its slice. A request is let in, held for a turn of the loop, and ended."""

    def __init__(self, url: str, number: int, pool_blocks: int) -> None:
        config = GateConfig(policy=Policy.WORST_CASE, max_num_seqs=10**6, abort_tail_ns=0)
        self._gate = Gate(config, uniform_layout(16), Blocks(pool_blocks))
        self._store = RedisStore(address_of(url, {}), timeout_s=1.0)
        member: Any = SimpleNamespace(gate=self._gate, name="bench")
        branch = Branch(f"gate-{number}-{time.time_ns()}", LEASE_NS)
        self._lending = Lending(member, self._store, branch, self, time.monotonic_ns)
        self._store.woken = lambda _pool, name: self._lending.woken(name)
        self._waiting: dict[str, asyncio.Future[bool]] = {}
        self._refused = 0
        self._loop = asyncio.get_running_loop()

    async def start(self) -> None:
        await self._store.start()
        self._lending.start()
        while self._lending.replica.branch.is_lost(time.monotonic_ns()) or self._lending.replica.branch.settling:
            await asyncio.sleep(0.05)

    async def pair(self, number: int) -> None:
        name = str(number)
        arrived = Arrived(name, (Tokens(16),), Tokens(BLOCKS_EACH * 16 - 16), Tokens(64))
        forwarded: asyncio.Future[bool] = self._loop.create_future()
        self._waiting[name] = forwarded
        now_ns = time.monotonic_ns()
        if self._lending.has_to_ask(arrived, now_ns):
            self._lending.ask_for(arrived, now_ns, lambda: self.push(arrived))
        else:
            self.push(arrived)
        if forwarded.done():
            await asyncio.sleep(0)
        if not await forwarded:
            self._refused += 1
            return
        self.push(Ended(name, Outcome.FINISHED, Tokens(1)))

    def push(self, event: Event) -> None:
        now_ns = time.monotonic_ns()
        for command in self._gate.handle(event, now_ns):
            if isinstance(command, Forward | Reject):
                self._waiting.pop(command.request_id).set_result(isinstance(command, Forward))
        self._lending.nudge(now_ns)

    # What `Lending` wants of a gateway

    def push_at(self, _member: object, event: Event) -> None:
        self.push(event)

    def forfeit(self, _member: object, blocks: int) -> None:
        raise AssertionError(f"{blocks} blocks were lent twice")

    def ledger_failed(self) -> None:
        print("the ledger failed", file=sys.stderr)

    def told(self) -> dict[str, object]:
        return {"calls": self._lending.calls, "refused": self._refused}

    async def close(self) -> None:
        await self._lending.close()
        await self._store.close()


class StoreCalls:
    """The store alone: in each of `flights` pools, one branch that calls. A pair is one call."""

    def __init__(self, url: str, number: int, _pool_blocks: int) -> None:
        self._store = RedisStore(address_of(url, {}), timeout_s=1.0)
        self._name = f"branch-{number}-{time.time_ns()}"

    async def start(self) -> None:
        await self._store.start()

    async def pair(self, number: int) -> None:
        await self._store.call(f"pool{number % 32}", call_of(self._name, number))

    def told(self) -> dict[str, object]:
        return {}

    async def close(self) -> None:
        await self._store.close()


class RedisPyCalls:
    """The same script, called by redis-py."""

    def __init__(self, url: str, number: int, _pool_blocks: int) -> None:
        import redis.asyncio

        pool = redis.asyncio.BlockingConnectionPool.from_url(url, max_connections=16, timeout=None)
        self._redis = redis.asyncio.Redis(connection_pool=pool)
        self._name = f"branch-{number}-{time.time_ns()}"

    async def start(self) -> None:
        await self._redis.script_load(SCRIPT)

    async def pair(self, number: int) -> None:
        keys = keys_of("redis-py", f"pool{number % 32}")
        parts: list[Any] = arguments(keys, b"PUBLISH", b"", call_of(self._name, number))
        await self._redis.evalsha(SHA.decode(), *parts)

    def told(self) -> dict[str, object]:
        return {}

    async def close(self) -> None:
        await self._redis.aclose()


class PlainRedisPy(RedisPyCalls):
    """No slices: a script to reserve and one to release, by redis-py."""

    async def start(self) -> None:
        self._shas = [await self._redis.script_load(script) for script in (RESERVE, RELEASE)]

    async def pair(self, number: int) -> None:
        name = f"{self._name}-{number}"
        await self._redis.evalsha(
            self._shas[0], 2, "{plain}:held", "{plain}:leases", BLOCKS_EACH, 10**9, name, int(time.time()) + 60
        )
        await self._redis.evalsha(self._shas[1], 2, "{plain}:held", "{plain}:leases", BLOCKS_EACH, name)


def call_of(branch: str, number: int) -> Call:
    """As a gate with some load makes it."""
    lines = (Line("blocks", 10**6, 1000, 1000 + number % 7, 1200, 900), Line("sequences", 10**4, 10, 10, 12, 9))
    return Call(branch, number, LEASE_NS // 10**6, lines)


WAYS: dict[str, Any] = {
    "gate": GatePairs,
    "store": StoreCalls,
    "redis-py-store": RedisPyCalls,
    "redis-py-plain": PlainRedisPy,
}


async def work(way: Any, arguments: argparse.Namespace) -> dict[str, object]:
    """Until the time is over."""
    began, cpu, taken = time.perf_counter(), time.process_time(), []
    until = began + arguments.seconds

    async def one(number: int, came: float) -> None:
        await way.pair(number)
        taken.append(time.perf_counter() - came)

    if arguments.rate:
        number, running = 0, set()
        while (now := time.perf_counter()) < until:
            while began + number / arguments.rate <= now:
                number += 1
                task = asyncio.ensure_future(one(number, now))
                running.add(task)
                task.add_done_callback(running.discard)
            await asyncio.sleep(0.001)  # some at once: a loop that waits for shorter never sleeps
        await asyncio.gather(*running)
    else:

        async def flight(at: int) -> None:
            number = at + 1
            while (now := time.perf_counter()) < until:
                await one(number, now)
                number += arguments.flights

        await asyncio.gather(*[flight(at) for at in range(arguments.flights)])
    seconds = time.perf_counter() - began
    taken.sort()
    return {
        "pairs": len(taken),
        "seconds": seconds,
        "cpu_s": time.process_time() - cpu,
        "p50_us": taken[len(taken) // 2] * 1e6,
        "p99_us": taken[len(taken) * 99 // 100] * 1e6,
        **way.told(),
    }


async def main() -> None:
    """Ready, go, done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--url", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--flights", type=int, default=32)
    parser.add_argument("--pool-blocks", type=int, default=10**6)
    parser.add_argument("--number", type=int, default=0)
    given = parser.parse_args()
    way = WAYS[given.way](given.url, given.number, given.pool_blocks)
    await way.start()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print(json.dumps(await work(way, given)), flush=True)
    await way.close()


if __name__ == "__main__":
    uvloop.run(main())
