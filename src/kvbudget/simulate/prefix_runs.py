"""Decides what a prefix cache of one full-attention group finds, keeps and overwrites, in runs of blocks.

The same rules as `block_pool.py` and `group_rules.GroupRule` (vLLM 0.32 `v1/core/block_pool.py`), for the same answers
at a fraction of the work: blocks of one sequence that are held by the same requests, and would be overwritten one after
the other, are one run. Which id a block has decides nothing here, only how many there are and in which order those are
overwritten in which something can be found; a run is overwritten from its end, as a request's last block is.
"""

from collections.abc import Sequence

from kvbudget.errors import AccountingError

# (run, first place that is held of it): it may have been split since, into pieces that hang on `Run.before`.
Holding = tuple["Run", int]
# (run, first place, place behind the last)
Found = tuple["Run", int, int]


class Path:
    """What the blocks of one request can be found by: up to block `shared` the chains of its prefix ids, so many blocks
    each, ascending; behind them its own content, which only itself can find again, after a preemption."""

    __slots__ = ("chains", "own", "shared")

    def __init__(self, chains: tuple[int, ...], shared: int) -> None:
        self.chains = chains
        self.shared = shared
        self.own: list[Run] = []  # runs with blocks behind `shared`, oldest first


class Run:
    """Blocks `lo` to `hi` of the path of the request that computed them: all shared by ids, or all its own."""

    __slots__ = ("before", "hi", "holders", "lo", "newer", "older", "path")

    def __init__(self, path: Path, lo: int, hi: int) -> None:
        self.path = path
        self.lo = lo
        self.hi = hi
        self.holders = 1
        self.before: Run | None = None  # split off from here: the blocks just before `lo`
        self.older: Run | None = None  # among those that nobody holds
        self.newer: Run | None = None


class RunPool:
    """Counts of blocks: `plain_free` carry nothing, `cached_free` can be found and are overwritten last."""

    def __init__(self, usable_blocks: int, blocks_per_id: int) -> None:
        self.plain_free = usable_blocks
        self.cached_free = 0
        self.met_copies = False  # the last search saw blocks of which there is more than one
        self._per_id = blocks_per_id
        # Of each chain, which are numbered without gaps (`GatePrefixes`): what is nearly always one, or oldest first.
        self._runs: list[Run | list[Run] | None] = []
        ends = Path((), 0)
        self._oldest, self._newest = Run(ends, 0, 0), Run(ends, 0, 0)  # ends of the list, not in it
        self._oldest.newer, self._newest.older = self._newest, self._oldest

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return self.plain_free + self.cached_free

    def take(self, count: int) -> None:
        """Hand out `count` blocks; what could be found in the oldest is forgotten where the others do not suffice.

        Raises AccountingError when fewer are free: check first.
        """
        plain = self.plain_free
        if count <= plain:
            self.plain_free = plain - count
            return
        count -= plain
        self.plain_free = 0
        if count > self.cached_free:
            raise AccountingError(f"{count} cached blocks asked for, {self.cached_free} are free")
        self.cached_free -= count
        while count:
            run = self._oldest.newer
            assert run is not None  # noqa: S101 - as many are free
            size = run.hi - run.lo
            if size <= count:
                count -= size
                self._unlink(run)
                self._forget(run, run.lo)
            else:
                self._forget(run, run.hi - count)
                count = 0

    def give_back(self, plain: int) -> None:
        """`plain` blocks in which nothing can be found."""
        self.plain_free += plain

    def find(self, path: Path, limit: int) -> list[Found]:
        """The longest prefix of the first `limit` blocks that is there, in runs."""
        found: list[Found] = []
        self.met_copies = len(path.own) > 1
        place, per_id, depth = 0, self._per_id, 0
        shared = path.shared if path.shared < limit else limit
        runs_of, chains = self._runs, path.chains
        last: Run | None = None
        while place < shared:
            chain = chains[depth]
            runs = runs_of[chain] if chain < len(runs_of) else None
            if runs is None:
                return found
            depth += 1
            end = depth * per_id
            end = min(end, shared)
            if isinstance(runs, Run):
                run = runs
                if not run.lo <= place < run.hi:
                    return found
                stop = run.hi if run.hi < end else end
                if run is last:
                    found[-1] = (run, found[-1][1], stop)
                else:
                    found.append((run, place, stop))
                    last = run
                place = stop
            else:
                self.met_copies = True
                place = _search(runs, place, end, found)
                last = found[-1][0] if found else None
            if place < end:
                return found
        if place < limit and path.own:
            _search(path.own, place, limit, found)
        return found

    def free_among(self, found: Sequence[Found]) -> int:
        """Of the found blocks, those that nobody holds."""
        return sum([stop - start for run, start, stop in found if not run.holders])

    def hold(self, found: Sequence[Found]) -> list[Holding]:
        """One more holder for each of these blocks."""
        holdings: list[Holding] = []
        for run, start, stop in found:
            if stop < run.hi:
                run = self._split(run, stop)  # noqa: PLW2901 - the part that is wanted
            if run.lo < start:
                self._split(run, start)
            if not run.holders:
                self.cached_free -= run.hi - run.lo
                self._unlink(run)
            run.holders += 1
            holdings.append((run, start))
        return holdings

    def remember(self, path: Path, lo: int, hi: int, holdings: list[Holding]) -> None:
        """The blocks `lo` to `hi`, held and filled by the request of `holdings`, can be found from now on."""
        if lo < path.shared < hi:
            self.remember(path, lo, path.shared, holdings)
            lo = path.shared
        if holdings:
            run = holdings[-1][0]
            if run.path is path and run.hi == lo and run.holders == 1 and self._may_grow(run):
                run.hi = hi
                if lo < path.shared:
                    self._register(run, lo)
                return
        run = Run(path, lo, hi)
        if lo < path.shared:
            self._register(run, lo)
        else:
            path.own.append(run)
        holdings.append((run, lo))

    def release(self, holdings: Sequence[Holding]) -> None:
        """One holder less, the last block first."""
        newest = self._newest
        for run, start in reversed(holdings):
            piece: Run | None = run
            while piece is not None:
                piece.holders -= 1
                if not piece.holders:
                    self.cached_free += piece.hi - piece.lo
                    older = newest.older
                    assert older is not None  # noqa: S101 - the end of the list, if nothing else
                    piece.older, piece.newer = older, newest
                    older.newer = newest.older = piece
                if piece.lo <= start:
                    break
                piece = piece.before

    def _may_grow(self, run: Run) -> bool:
        """Whether a run may be made longer: its next block has no other copy that was there before."""
        path, hi = run.path, run.hi
        if run.lo >= path.shared:
            return path.own[-1] is run
        return hi < path.shared and (not hi % self._per_id or self._runs[path.chains[hi // self._per_id]] is run)

    def _register(self, run: Run, start: int) -> None:
        """Blocks from `start` on are new in `run`."""
        chains, per_id, runs_of = run.path.chains, self._per_id, self._runs
        first = start // per_id if run.lo == start else -(-start // per_id)  # part of an id: it is there already
        end = -(-run.hi // per_id)
        missing = chains[end - 1] + 1 - len(runs_of)
        if missing > 0:
            runs_of.extend([None] * missing)
        for depth in range(first, end):
            chain = chains[depth]
            runs = runs_of[chain]
            if runs is None:
                runs_of[chain] = run
            elif isinstance(runs, Run):
                runs_of[chain] = [runs, run]
            else:
                runs.append(run)

    def _forget(self, run: Run, new_hi: int) -> None:
        """Nothing is found any more in the blocks from `new_hi` on, which were the last of `run`."""
        path, per_id, runs_of = run.path, self._per_id, self._runs
        hi, run.hi = run.hi, new_hi
        if run.lo >= path.shared:
            if new_hi == run.lo:
                path.own.remove(run)
            return
        first = new_hi // per_id if new_hi == run.lo else -(-new_hi // per_id)
        chains = path.chains
        for depth in range(first, -(-hi // per_id)):
            chain = chains[depth]
            runs = runs_of[chain]
            if isinstance(runs, list):
                runs.remove(run)
                if len(runs) == 1:
                    runs_of[chain] = runs[0]
            else:
                runs_of[chain] = None

    def _split(self, run: Run, at: int) -> Run:
        """Cut `run` in two; it keeps the blocks from `at` on, the new one before it is returned."""
        head = Run(run.path, run.lo, at)
        head.holders = run.holders
        head.before, run.before = run.before, head
        path, per_id = run.path, self._per_id
        if run.lo >= path.shared:
            path.own.insert(path.own.index(run), head)
        else:
            for depth in range(run.lo // per_id, -(-at // per_id)):
                chain, on_both_sides = path.chains[depth], min((depth + 1) * per_id, run.hi) > at
                runs = self._runs[chain]
                if not isinstance(runs, list):
                    self._runs[chain] = [head, run] if on_both_sides else head
                elif on_both_sides:
                    runs.insert(runs.index(run), head)
                else:
                    runs[runs.index(run)] = head
        if not run.holders:  # overwritten after the blocks behind it
            newer = run.newer
            assert newer is not None  # noqa: S101 - the end of the list, if nothing else
            head.older, head.newer = run, newer
            run.newer = newer.older = head
        run.lo = at
        return head

    def _unlink(self, run: Run) -> None:
        older, newer = run.older, run.newer
        assert older is not None  # noqa: S101 - it is in the list
        assert newer is not None  # noqa: S101
        older.newer, newer.older = newer, older
        run.older = run.newer = None


def _search(runs: Sequence[Run], place: int, end: int, found: list[Found]) -> int:
    """Append what `runs` have from `place` on, of several copies of a block the oldest; the place where that ends."""
    while place < end:
        for number, run in enumerate(runs):
            if run.lo <= place < run.hi:
                stop = min([run.hi, end, *[one.lo for one in runs[:number] if place < one.lo]])
                if found and found[-1][0] is run and found[-1][2] == place:
                    found[-1] = (run, found[-1][1], stop)
                else:
                    found.append((run, place, stop))
                place = stop
                break
        else:
            break
    return place
