"""Runs of blocks are found, kept and overwritten as single blocks are."""

import random

import pytest

from kvbudget.errors import AccountingError
from kvbudget.simulate.block_pool import BlockPool
from kvbudget.simulate.gate_prefixes import GatePrefixes
from kvbudget.simulate.prefix_chains import PrefixChains
from kvbudget.simulate.prefix_keys import PrefixKeys
from kvbudget.simulate.prefix_runs import Holding, Path, RunPool

PER_ID = 4  # blocks


class Twin:
    """The same request in both pools."""

    def __init__(self, path: Path, keys: list[int], blocks: int) -> None:
        self.path = path
        self.keys = keys
        self.blocks = blocks
        self.holdings: list[Holding] = []
        self.table: list[int] = []
        self.keyed = 0


@pytest.mark.parametrize("seed", range(25))
def test_runs_answer_as_single_blocks_do(seed: int) -> None:
    chance = random.Random(seed)
    runs, blocks = RunPool(60, PER_ID), BlockPool(61)
    chains, keys = PrefixChains(PER_ID, 1, GatePrefixes()), PrefixKeys(PER_ID, 1)
    living: list[Twin] = []
    own = 0
    for _ in range(400):
        growing = [twin for twin in living if len(twin.table) < twin.blocks]
        if growing and chance.random() < 0.5:  # a chunk of prefill: blocks are taken, the whole ones remembered
            twin = chance.choice(growing)
            count = min(chance.randint(1, 9), twin.blocks - len(twin.table), blocks.free_blocks)
            if count:
                runs.take(count)
                twin.table += blocks.take(count)
                keyed = len(twin.table) - chance.randint(0, 1)
                if keyed > twin.keyed:
                    runs.remember(twin.path, twin.keyed, keyed, twin.holdings)
                    for place in range(twin.keyed, keyed):
                        blocks.remember(0, twin.keys[place], twin.table[place])
                    twin.keyed = keyed
        elif living and chance.random() < 0.4:
            twin = living.pop(chance.randrange(len(living)))
            blocks.give_back(twin.table)
            runs.give_back(len(twin.table) - twin.keyed)
            runs.release(twin.holdings)
        else:
            ids = [chance.randint(1, 2) for _ in range(chance.randint(0, 5))]
            size = chance.randint(1, 22)
            path, known = chains.path(ids, size), list(keys.keys(ids, size))
            own -= 1000
            twin = Twin(path, known + [own - place for place in range(size - len(known))], size)
            limit = chance.randint(0, size)
            found = runs.find(path, limit)
            hit: list[int] = []
            for place in range(limit):
                block = blocks.find((0,), twin.keys[place])
                if block is None:
                    break
                hit += block
            assert (found[-1][2] if found else 0) == len(hit)
            assert runs.free_among(found) == sum(map(blocks.is_free, hit))
            twin.holdings = runs.hold(found)
            blocks.hold(hit)
            twin.table, twin.keyed = hit, len(hit)
            living.append(twin)
        assert (runs.free_blocks, runs.cached_free) == (blocks.free_blocks, len(blocks._cached_free))
    assert not runs.find(Path((), 0), 9)


def test_what_is_not_there_cannot_be_taken() -> None:
    pool = RunPool(3, PER_ID)
    pool.take(3)
    with pytest.raises(AccountingError, match="asked for"):
        pool.take(1)


def test_a_request_finds_its_own_blocks_again_and_nobody_else_does() -> None:
    pool = RunPool(10, PER_ID)
    path, holdings = Path((), 0), list[Holding]()
    pool.take(5)
    pool.remember(path, 0, 4, holdings)
    pool.give_back(1)
    pool.release(holdings)
    assert [(start, stop) for _, start, stop in pool.find(path, 9)] == [(0, 4)]
    assert pool.find(Path((), 0), 9) == []
    pool.take(7)  # the last one of the four is overwritten first
    assert [(start, stop) for _, start, stop in pool.find(path, 9)] == [(0, 3)]


@pytest.mark.parametrize("seed", range(5))
def test_chains_are_those_of_the_engines_keys(seed: int) -> None:
    """Two prompts share a block in one of them exactly if they do in the other."""
    chance = random.Random(seed)
    chains, keys = PrefixChains(32, 16, GatePrefixes()), PrefixKeys(32, 16)
    paths: list[list[int]] = []
    known: list[tuple[int, ...]] = []
    for _ in range(40):
        ids = [chance.choice([1, 2, -3, 1 << 70]) for _ in range(chance.randint(0, 4))]
        prompt = chance.randint(1, 150)
        path = chains.path(ids, prompt)
        paths.append([path.chains[place // 2] << 32 | place for place in range(path.shared)])
        known.append(keys.keys(ids, prompt))
    for one, other, a, b in zip(paths, paths[1:], known, known[1:], strict=False):
        assert [len(one), len(other)] == [len(a), len(b)]
        same = [x == y for x, y in zip(one, other, strict=False)]
        assert same == [x == y for x, y in zip(a, b, strict=False)]
