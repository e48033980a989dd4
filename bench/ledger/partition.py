"""Two gates in network namespaces of their own; the way of one to the ledger is cut, its way to the engine is not.

`make bench-partition`, as root on Linux: it makes two namespaces and two pairs of links, and takes them away again.
Prints what was seen to be promised while the way was cut and after it was there again, and how long each side took to
notice.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
POOL, LEASE_S = 256, 2.0
A, B = f"kvb-a-{os.getpid()}", f"kvb-b-{os.getpid()}"  # A: engine, ledger, one gate; B: the other gate
ENGINE, LEDGER, FAR = "10.213.7.1", "10.213.8.1", "10.213.7.2"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextmanager
def network():
    """A and B, with one link for the engine's traffic and one for the ledger's."""
    try:
        for name in (A, B):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        for number, net in (("7", "e"), ("8", "l")):
            ip("link", "add", f"{net}a", "netns", A, "type", "veth", "peer", "name", f"{net}b", "netns", B)
            for name, end, host in ((A, f"{net}a", "1"), (B, f"{net}b", "2")):
                ip("-n", name, "addr", "add", f"10.213.{number}.{host}/30", "dev", end)
                ip("-n", name, "link", "set", end, "up")
        yield
    finally:
        for name in (A, B):
            subprocess.run(["ip", "netns", "del", name], check=False)


def run_in(stack: ExitStack, name: str, *words: str, ready: bool = True) -> dict[str, str]:
    """A command in a namespace; its ready line."""
    process = subprocess.Popen(["ip", "netns", "exec", name, *words], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL)  # fmt: skip
    stack.callback(process.wait, 10)
    stack.callback(process.kill)
    assert process.stdout is not None
    stack.callback(process.stdout.close)
    return json.loads(process.stdout.readline()) if ready else {}


CLIENT = """
import asyncio, json, sys, httpx
async def main():
    url, admin = sys.argv[1:3]
    async with httpx.AsyncClient(timeout=30, limits=httpx.Limits(max_connections=200)) as client:
        async def one(n):
            ask = {"prompt": "hi", "max_tokens": 100 + 37 * n % 300, "ignore_eos": True}
            try:
                answer = await client.post(url + "/v1/completions", json=ask)
                print(json.dumps(["answer", answer.status_code]), flush=True)
            except httpx.HTTPError as error:
                print(json.dumps(["answer", type(error).__name__]), flush=True)
        async def watch():
            while True:
                text = (await client.get(admin + "/metrics")).text
                value = lambda name: sum(float(l.split()[-1]) for l in text.splitlines() if l.startswith(name + "{"))
                print(json.dumps(["look", value("kvbudget_reserved_blocks"), value("kvbudget_ledger_up")]), flush=True)
                await asyncio.sleep(0.02)
        asyncio.create_task(watch())
        tasks = set()
        for n in range(100000):
            tasks.add(asyncio.create_task(one(n)))
            await asyncio.sleep(0.05)
asyncio.run(main())
"""


async def read(process: asyncio.subprocess.Process, looks: list[tuple[float, float, float]], answers: Counter) -> None:
    assert process.stdout is not None
    async for line in process.stdout:
        kind, *rest = json.loads(line)
        if kind == "look":
            looks.append((time.monotonic(), *rest))
        else:
            answers[rest[0]] += 1


async def main() -> None:
    from ledger_servers import program

    python = [sys.executable, "-m", "kvbudget"]
    with network(), ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        run_in(stack, A, program("valkey"), "--port", "6379", "--bind", LEDGER, "--save", "", "--dir", folder,
               "--protected-mode", "no", ready=False)  # fmt: skip
        engine = run_in(stack, A, *python, "engine", "--host", ENGINE, "--port", "0", "--num-blocks", str(POOL + 1),
                        "--max-model-len", "4096", "--step-cost", "0.005", "--json")  # fmt: skip
        gates = []
        for name, host in ((A, ENGINE), (B, FAR)):
            gates.append(
                run_in(stack, name, *python, "serve", "--backend", engine["url"], "--host", host, "--port", "0",
                       "--admin-port", "0", "--policy", "worst-case", "--json", "--ledger", f"redis://{LEDGER}:6379",
                       "--lease-seconds", str(LEASE_S))
            )  # fmt: skip
        looks: list[list[tuple[float, float, float]]] = [[], []]
        answers = [Counter(), Counter()]
        clients = [
            await asyncio.create_subprocess_exec(
                "ip", "netns", "exec", name, sys.executable, "-c", CLIENT, gate["gate"], gate["admin"],
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            )
            for name, gate in zip((A, B), gates, strict=True)
        ]  # fmt: skip
        readers = [asyncio.create_task(read(c, looks[n], answers[n])) for n, c in enumerate(clients)]
        for what, seconds in (("whole", 6.0), ("cut", 8.0), ("whole again", 8.0)):
            if what != "whole":
                ip("-n", A, "link", "set", "la", "up" if what == "whole again" else "down")
            began = time.monotonic()
            before = [Counter(one) for one in answers]
            await asyncio.sleep(seconds)
            told = [one - old for one, old in zip(answers, before, strict=True)]
            a, b = (dict(one) for one in told)
            print(f"{what:12} most seen promised {most(looks, began):.0f} of {POOL};  gate A {a}  gate B {b}")
            for name, seen in zip("AB", looks, strict=True):
                ups = [(when - began, up) for when, _, up in seen]
                changed = [when for (_, was), (when, up) in pairwise(ups) if when > 0 and was != up]
                if changed:
                    print(f"             gate {name} noticed after {changed[0]:.2f} s")
        for client in clients:
            client.kill()
        told = subprocess.run(
            ["ip", "netns", "exec", A, "curl", "-s", engine["url"] + "/metrics"], stdout=subprocess.PIPE, text=True
        )
        print(*[line for line in told.stdout.splitlines() if line.startswith("vllm:num_preemptions_total")])
        await asyncio.gather(*readers, *[client.wait() for client in clients])


def most(looks: list[list[tuple[float, float, float]]], since: float) -> float:
    """The most that both were seen to have promised. Looks at them are up to 0.1 s apart: what moves from one to the
    other meanwhile is seen twice."""
    events = sorted([(when, gate, held) for gate, seen in enumerate(looks) for when, held, _ in seen if when > since])
    last, most = [0.0, 0.0], 0.0
    for _, gate, held in events:
        last[gate] = held
        most = max(most, sum(last))
    return most


if __name__ == "__main__":
    asyncio.run(main())
