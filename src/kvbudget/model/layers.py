"""What one layer keeps in the cache: a kind, and the sizes that decide its page.

Each further kind (sliding, chunked, MLA, recurrent state, shared) is one more class here, named in `Layer`.
Values on the planner's path are named tuples, not dataclasses: as immutable, and eight times cheaper to define, which
is much of what the start-up of `kvbudget plan` consists of.
"""

from typing import NamedTuple


class FullAttention(NamedTuple):
    """MHA, GQA or MQA over the whole context: one key and one value of each KV head for every token.

    `kv_heads` of the whole model, before tensor parallelism; head sizes in elements.
    """

    kv_heads: int
    key_size: int
    value_size: int

    @property
    def kind(self) -> str:
        """Name of the kind, as in plans."""
        return "full"


Layer = FullAttention
