"""Decides which beginnings of prompts a gate holds in common with the others before its pool: charged once for all.

Each gate finds by itself what many of its living prompts begin with. It takes the blocks of that out of its own slice
and keeps them under a name that means the same at every gate; the bank charges a name once, however many keep it
(`gate.bank.bank`), and what is charged more than once is free from then on. So nobody has to be asked before: what the
gate goes by is the same before and after the call that says so, whether that is heard or not. What is charged here
again is claimed for the slice in the call that gives up the name: those who live hold it, so it is
not free for others.

While it keeps a name, the gate's promises leave those blocks out (`Ledger.hold_in_common`). If the answer does not
confirm it, or the engine turns out not to share after all, they are charged here again, and nobody is let in until
promises fit. It gives up what none of its promises counts on.

Only where one copy is sure to be all that there is, whoever asks for it first (`Sharing.SCHEDULED`): prompts that are
read side by side at several gates may each hold one.
"""

from collections.abc import Sequence
from typing import Final

from kvbudget.gate.bank.branch import Branch, Stand
from kvbudget.gate.bank.terms import BLOCKS, PREFIX
from kvbudget.gate.gate import Gate
from kvbudget.pool.prefix import Sharing
from kvbudget.units import Blocks

MOST: Final = 4  # names of one gate at a time
_LEAST_OF_POOL: Final = 256  # fewer blocks than this part of it are not worth a name
_LEAST_HOLDERS: Final = 3  # two may share by chance what nobody else begins with
_LOOK_NS: Final = 100_000_000  # for more of them
_LASTS_NS: Final = 500_000_000  # so long many must have had it
# What nobody here has had for so long is given up; at once, where somebody waits and no other gate keeps it.
_IDLE_NS: Final = 10**9


class Commons:
    """What one gate keeps in common."""

    def __init__(self, gate: Gate, branch: Branch) -> None:
        self._gate = gate
        self._branch = branch
        self._next_look_ns = 0
        self._seen_ns: dict[str, int] = {}  # since when many have what a name stands for
        self._idle_since_ns: dict[str, int] = {}  # by name
        self._confirmed: dict[str, int] = {}  # by the last answer: blocks of each name

    def stands(self) -> list[Stand]:
        """To tell the bank."""
        ledger = self._gate.ledger
        blocks = {name: ledger.common_blocks_of(len(keys)) for name, keys in ledger.commons.items()}
        return [Stand(name, 0, most, most, 0, told_only=True) for name, most in blocks.items()]

    @property
    def given_up_blocks(self) -> int:
        """Of names that the bank keeps for us by its last answer, and that are charged here again."""
        commons = self._gate.ledger.commons
        return sum([blocks for name, blocks in self._confirmed.items() if name not in commons])

    def review(self, now_ns: int, *, is_short: bool) -> None:
        """Give up what is not needed any more, and take out of the slice what many hold by now. `is_short`: somebody
        waits, here or elsewhere. The gate is in touch with the bank, and its slice is lowered to what is left of it
        before it promises anything."""
        ledger = self._gate.ledger
        self._idle_since_ns = {name: at_ns for name, at_ns in self._idle_since_ns.items() if name in ledger.commons}
        for name, keys in list(ledger.commons.items()):
            counted = ledger.counting_on(name)
            if counted == len(keys):
                self._idle_since_ns.pop(name, None)
                continue
            since_ns = self._idle_since_ns.setdefault(name, now_ns)
            is_in_the_way = is_short and not counted and not self._branch.elsewhere.get(name, 0)
            if is_in_the_way or now_ns - since_ns >= _IDLE_NS:
                self._gate.promises.pay_again_within(name, self._branch.slices.get(BLOCKS, 0), now_ns)
        if self._branch.branches > 1 and now_ns >= self._next_look_ns:
            self._next_look_ns = now_ns + _LOOK_NS
            self._look(now_ns)

    def confirmed(self) -> None:
        """The bank has answered to the last call: what it does not charge for us is charged here again."""
        ledger, slices = self._gate.ledger, self._branch.slices
        self._confirmed = {name: slices[name] for name in slices if name.startswith(PREFIX)}
        for name, keys in list(ledger.commons.items()):
            if slices.get(name, 0) < ledger.common_blocks_of(len(keys)):
                self._gate.promises.pay_again(name)

    def pay_all_again(self) -> None:
        """The bank is out of reach, and something else decides what is ours."""
        for name in list(self._gate.ledger.commons):
            self._gate.promises.pay_again(name)

    def _look(self, now_ns: int) -> None:
        gate, slices = self._gate, self._branch.slices
        ledger = gate.ledger
        before, self._seen_ns = self._seen_ns, {}
        if ledger.sharing is not Sharing.SCHEDULED or not ledger.key_tokens or not gate.trust.given:
            return
        least_keys = max(1, -(-ledger.pool_blocks // (_LEAST_OF_POOL * ledger.common_blocks_of(1))))
        found = ledger.prefixes.widest(_LEAST_HOLDERS, least_keys)
        for keys in reversed(found):  # the longest of those that last
            name = name_of(keys)
            since_ns = self._seen_ns[name] = before.get(name, now_ns)
            blocks, ours = ledger.common_blocks_of(len(keys)), slices.get(BLOCKS, 0)
            if now_ns - since_ns < _LASTS_NS or blocks > ours or len(ledger.commons) >= MOST:
                continue
            if any(keys[0] == known[0] for known in ledger.commons.values()):
                continue  # both would take the blocks that they begin with off what is promised here
            if gate.promises.hold_in_common(name, keys, Blocks(ours - blocks), now_ns):
                slices[BLOCKS] = ours - blocks


def name_of(keys: Sequence[int]) -> str:
    """The last key stands for all before it."""
    return f"{PREFIX}{len(keys)} {keys[-1] & (1 << 64) - 1:x}"
