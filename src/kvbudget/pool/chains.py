"""Which number stands for a prompt up to the end of each of its blocks: equal exactly where prompts begin alike.

As engines do it (vLLM 0.32 `v1/core/kv_cache_utils.py: hash_block_tokens`): a block's key is made of the key before it
and its own tokens, and the first one of a seed that tells apart what must not be shared although the tokens are the
same: adapter, cache salt, images. The numbers need not be the engine's, only differ where its own do.

They are made by Python's keyed hash of bytes (SipHash-1-3, PEP 456): a prompt of 6,000 tokens takes 70 us, a third of
what blake2b takes, and who does not know the process's key cannot make two prompts collide. So keys mean something in
one process only; a collision would be a wrong guess like any other (`pool.prefix`). Processes that have to know each
other's keys agree on a secret and make them by blake2b.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

MOST_AGREED: Final = 2048  # keys: of 16 tokens, 1.1 ms; those behind mean something in one process only
_TOKEN_BYTES: Final = 4
_KEY_BYTES: Final = 8


def chain_keys(token_ids: Sequence[int], tokens_per_key: int, seed: int = 0) -> tuple[int, ...]:
    """Keys of the blocks of a prompt that another one like it could use: whole ones, without the last token's.

    `seed`: equal for prompts that may share. Raises OverflowError for an id that is no unsigned 32-bit number.
    """
    return chain_keys_of(array("I", token_ids).tobytes(), tokens_per_key, seed)


def chain_keys_of(data: bytes, tokens_per_key: int, seed: int = 0) -> tuple[int, ...]:
    """The same of ids that are in memory already, as 32-bit numbers of this machine one after another."""
    step = tokens_per_key * _TOKEN_BYTES
    key = seed
    keys: list[int] = []
    for end in range(step, len(data), step):  # not up to the end: the last token is always computed
        key = hash((key, data[end - step : end]))
        keys.append(key)
    return tuple(keys)


def agreed_keys_of(data: bytes, tokens_per_key: int, secret: bytes, seed: bytes = b"") -> tuple[int, ...]:
    """The same with keys that are equal in all processes that have the `secret` (at most 64 bytes)."""
    step = tokens_per_key * _TOKEN_BYTES
    most = MOST_AGREED * step
    chain = blake2b(seed, digest_size=_KEY_BYTES, key=secret)
    keys: list[int] = []
    for end in range(step, min(len(data), most + 1), step):
        chain.update(data[end - step : end])
        keys.append(int.from_bytes(chain.copy().digest(), "little"))
    if len(data) > most:
        keys += chain_keys_of(data[most:], tokens_per_key, keys[-1])
    return tuple(keys)


class CachedKeys:
    """Which keys the engine's cache has, by its own events (vLLM: `--kv-events-config`); empty until it tells.

    Bounded by what the engine can hold, as each of its blocks has one key: beyond `most` keys nothing is taken in.
    """

    __slots__ = ("_keys", "_most", "changes")

    def __init__(self, most: int = 1 << 20) -> None:
        self._keys: set[int] = set()
        self.changes = 0
        self._most = most

    def stored(self, keys: Sequence[int]) -> None:
        """They can be found from now on."""
        self.changes += 1
        if len(self._keys) + len(keys) <= self._most:
            self._keys.update(keys)

    def removed(self, keys: Sequence[int]) -> None:
        """They were overwritten."""
        self.changes += 1
        self._keys.difference_update(keys)

    def cleared(self) -> None:
        """Nothing is cached any more."""
        self.changes += 1
        self._keys.clear()

    def longest(self, keys: Sequence[int]) -> int:
        """So many of `keys`, from the first on, can be found."""
        if not self._keys:
            return 0
        count = 0
        for key in keys:
            if key not in self._keys:
                break
            count += 1
        return count

    def __len__(self) -> int:
        return len(self._keys)
