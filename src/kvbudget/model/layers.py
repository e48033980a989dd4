"""What one layer keeps in the cache: for each of its caches a kind, and the sizes that decide its page.

A model layer has no cache (an MLP, a pruned layer), one (attention), or several (MLA and its indexer, attention beside
a recurrent state). Sizes are of the whole model, before any parallelism, in elements.
Values on the planner's path are named tuples, not dataclasses: as immutable, and eight times cheaper to define, which
is much of what the start-up of `kvbudget plan` consists of.
"""

from typing import NamedTuple


class Attention(NamedTuple):
    """MHA, GQA or MQA: one key and one value of each KV head for every token that is kept.

    `window`: only the last so many tokens are kept (sliding window). `chunk`: only those of the current chunk of so
    many (Llama 4). At most one of them is set; with neither, the whole context is kept.
    """

    kv_heads: int
    key_size: int
    value_size: int
    window: int | None = None
    chunk: int | None = None

    @property
    def kind(self) -> str:
        """Name of the kind, as in plans."""
        return "full" if self.window is None and self.chunk is None else "sliding" if self.chunk is None else "chunked"


class CrossAttention(NamedTuple):
    """Keys and values of an encoder's output: a constant number of tokens for each request."""

    kv_heads: int
    key_size: int
    value_size: int
    encoder_tokens: int

    @property
    def kind(self) -> str:
        """Name of the kind, as in plans."""
        return "cross"


class Latent(NamedTuple):
    """MLA: one latent and one rotary part for every token, the same on all tensor-parallel ranks.

    `heads`, `key_size` and `value_size` are what an engine without MLA kernels keeps instead, for every head.
    `padded_size`: elements that a token takes where it is blown up to a wider latent's width (dots3); 0: its own.
    """

    latent_size: int
    rope_size: int
    heads: int
    key_size: int
    value_size: int
    window: int | None = None
    padded_size: int = 0

    @property
    def kind(self) -> str:
        """Name of the kind, as in plans."""
        return "mla"


class Indexer(NamedTuple):
    """Keys of a sparse-attention indexer (DeepSeek-V3.2, GLM-5): one head for every token, beside the layer's latent.

    `tokens_per_key`: more than one where keys are compressed (DeepSeek-V4). `plain`: keys are kept as they are, not
    quantised with a scale (MiniMax-M3, Qwen4-Exp).
    """

    head_size: int
    tokens_per_key: int = 1
    plain: bool = False

    @property
    def kind(self) -> str:
        """Name of the kind, as in plans."""
        return "indexer"


class Compressed(NamedTuple):
    """DeepSeek-V4 and V4.1: one vector that is key and value at once, the same on all tensor-parallel ranks.

    `ratio`: so many tokens share one vector. `window`: only those of the last so many tokens are kept. `rope_size` of
    the `head_size` elements are rotary, which packed formats may keep unquantised.
    """

    head_size: int
    rope_size: int
    ratio: int
    window: int | None = None

    @property
    def kind(self) -> str:
        """Name of the kind, as in plans."""
        return "compressed" if self.window is None else "sliding"


class Compressor(NamedTuple):
    """DeepSeek-V4: what is not compressed yet: `elements` of float32 for each of the last `window` tokens.

    The same on all ranks. `ratio`: of the vectors that it makes; `window` is one or two times that.
    """

    elements: int
    window: int
    ratio: int

    @property
    def kind(self) -> str:
        """Name of the kind, as in plans."""
        return "compressor"


class Ring(NamedTuple):
    """Keys of the group of `ratio` tokens that is not complete yet, which are compressed once it is.

    `elements` of `element_bytes` for each token, in a ring that a request has from its first token to its last and
    that is the same on all ranks. `family`: the model_type whose rule sizes the ring. `positions`: further bytes of a
    token that only a multimodal model has.
    """

    family: str
    elements: int
    element_bytes: int
    ratio: int
    positions: int = 0

    @property
    def kind(self) -> str:
        """Name of the kind, as in plans."""
        return "ring"


class ConvolutionWindow(NamedTuple):
    """Inkling: the past inputs of four short convolutions, kept in pages like those of a sliding window.

    Of each of `kv_heads`, which ranks share out, `size` elements for the last `window` tokens.
    """

    kv_heads: int
    size: int
    window: int

    @property
    def kind(self) -> str:
        """Name of the kind, as in plans."""
        return "convolution"


class State(NamedTuple):
    """A recurrent state: constant, whatever the length. Mamba, gated delta net, KDA, linear attention, convolution.

    A convolution keeps `conv_taps` past inputs of `conv_channels` channels, and of `group_channels` for each of
    `groups` (Mamba-2's B and C), of which every tensor-parallel rank holds at least one whole group. The recurrent
    part keeps `matrix_elements` over all `heads`. Channels and heads are split over ranks unless `replicated`.
    `mixer`: mamba1, mamba2, gdn, kda, linear, conv. `matrix_dtype`: what config.json or the class asks for, "" for the
    model's own.
    """

    mixer: str
    conv_channels: int
    conv_taps: int
    matrix_elements: int
    heads: int
    groups: int = 0
    group_channels: int = 0
    matrix_dtype: str = ""
    replicated: bool = False

    @property
    def kind(self) -> str:
        """Name of the kind, as in plans."""
        return "mamba"


Cache = Attention | CrossAttention | Latent | Indexer | Compressed | Compressor | Ring | ConvolutionWindow | State


class Layer(NamedTuple):
    """One layer of the model. `shared`: it reads the cache of an earlier layer and has none of its own."""

    caches: tuple[Cache, ...]
    shared: bool = False

    @property
    def kind(self) -> str:
        """The kinds of its caches joined, `shared`, or `none`."""
        if not self.caches:
            return "shared" if self.shared else "none"
        named = dict.fromkeys(cache.kind for cache in self.caches if not isinstance(cache, Ring))
        if "compressed" in named:
            return "compressed"
        kinds = "+".join(named)
        return "mla_indexer" if kinds in ("mla+indexer", "indexer+mla") else kinds
