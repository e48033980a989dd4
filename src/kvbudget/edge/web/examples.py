"""The worked examples of the ledger page: states of the page, as addresses; what they come to is planned, not written.

Most compare two states: `kept` stands beside `fields`. Titles, and what to look at, are in the page's words.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import urlencode

_Fields = Mapping[str, str]
_NONE: _Fields = MappingProxyType({})


class Example(NamedTuple):
    """One state of `page`. Fields at their defaults are left out, so that the page knows an example by its address."""

    key: str
    fields: _Fields = _NONE
    kept: _Fields = _NONE
    page: str = "/ledger"

    @property
    def query(self) -> str:
        """What stands behind the `?`."""
        return urlencode(self.fields)

    @property
    def kept_query(self) -> str:
        """The state to compare with; "" without one. A default state has to name one of its fields to be kept."""
        return urlencode(self.kept)

    @property
    def address(self) -> str:
        """Where the link leads."""
        kept = f"#{urlencode({'kept': self.kept_query})}" if self.kept else ""
        return f"{self.page}{'?' if self.fields else ''}{self.query}{kept}"


_CARD_24 = {"gpu_memory": "24GiB", "utilization": "1", "weights": "16GiB", "activation": "0", "overhead": "2GiB"}
# 800,000 bytes a token: 50 layers, 50 KV heads of 80. 80 GB of which the engine may take 0.9; decimal, as it is sold.
_SHAPE_80 = {"layers": "50", "kv_heads": "50", "head_dim": "80"}
_REST_80 = {"gpu_memory": "80GB", "utilization": "0.9", "weights": "42GB", "activation": "4GB", "overhead": "0"}
_CARD_80 = {**_SHAPE_80, "context": "4096", **_REST_80}
_LENGTHS = {"prompt_lengths": "p50=1500,p95=8000,p99=24000", "output_lengths": "p50=500,p95=2000,p99=8000"}

EXAMPLES = (
    Example("base"),
    Example("tail", {"context": "8001", "concurrency": "1"}),
    Example("heads", _NONE, {"kv_heads": "32"}),
    Example("layers", {"layers": "64"}, {"layers": "16"}),
    Example("head_size", {"head_dim": "256"}, {"head_dim": "64"}),
    Example("context", {"context": "16384"}, {"layers": "32"}),
    Example("requests", {"concurrency": "32"}, {"concurrency": "16"}),
    Example("same_tokens", {"context": "1024", "concurrency": "128"}, {"concurrency": "16"}),
    Example("precision", {"dtype": "fp8"}, {"layers": "32"}),
    Example("million", {"context": "1m", "concurrency": "1"}, {"concurrency": "1"}),
    Example("card_24", {"concurrency": "6", **_CARD_24}),
    Example("card_24_short", {"context": "1024", "concurrency": "48", **_CARD_24}),
    Example("card_24_one", {"context": "49152", "concurrency": "1", **_CARD_24}),
    Example(
        "card_24_documents", {"context": "6000", "concurrency": "8", **_CARD_24},
        {"context": "500", "concurrency": "8", **_CARD_24},
    ),
    Example("card_80", _CARD_80),
    Example("card_80_tp2", {**_CARD_80, "tp": "2"}, _CARD_80),
    Example("card_80_shorter", _CARD_80, {**_SHAPE_80, **_REST_80}),
    Example("card_80_quantised", {**_CARD_80, "weights": "21GB"}, _CARD_80),
    Example("card_80_share", {**_CARD_80, "utilization": "0.7"}, _CARD_80),
    Example("card_80_wanted", {**_SHAPE_80, "context": "4096", "concurrency": "15", **_REST_80}),
    Example("percentiles", {"context": "32k", "model": "Qwen3-8B", "gpu": "l40s", **_LENGTHS}),
    Example("windows", {"context": "128k", "concurrency": "8", "model": "gpt-oss-20b", "gpu": "h100"}),
    Example("overload", {"scenario": "overload-1.7"}, page="/simulate"),
    Example("reserve_max", {"scenario": "reasoning"}, page="/simulate"),
    Example("long_and_short", {"scenario": "alternating"}, page="/simulate"),
    Example("shared_prompt", {"scenario": "shared-prompt"}, page="/simulate"),
)  # fmt: skip


def examples_told() -> list[dict[str, str]]:
    """For the page."""
    return [
        {"key": one.key, "page": one.page, "address": one.address, "query": one.query, "kept": one.kept_query}
        for one in EXAMPLES
    ]
