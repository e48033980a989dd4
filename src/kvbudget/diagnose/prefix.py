"""Decides why a prefix cache gives nothing: it cannot, it is pushed out, nothing is shared, or it is not counted.

Hits are whole blocks: a shared beginning shorter than one block never hits (vllm#54607; hybrids have blocks of 784,
1,056, 1,600, 8,320 tokens). What is cached counts as free, so the gauge does not tell how much of it there is.
"""

from kvbudget.diagnose.finding import Action, Cost, Finding, Lever, Severity, Sure
from kvbudget.diagnose.fullness import is_full
from kvbudget.diagnose.symptoms import Symptoms, number
from kvbudget.engines.window import Distribution

_ASKED_TOKENS = 500  # fewer queried tokens say nothing
_NONE = 0.02  # a hit rate below this is none
_HALF = 0.60  # where some find all and others nothing, more than this is found by most
_MISSED = 0.25  # of the requests, that find nothing
_SOON_S = 10  # a beginning that is not asked for again within this is gone; a person reads longer than that
_OVER_AND_OVER = 3
_NEVER = float("inf")
_PRESSED = 0.80  # of the pool in use: what is cached has the rest
_HALF_PRESSED = 0.60
_WAS_GOOD, _FELL = 0.20, 0.5
_LARGE_BLOCK = 256  # beginnings that many share, such as system prompts, are often shorter than such a block
_FAR_LONGER = 4
_ABOVE_A_BLOCK = 2
# So many blocks' worth of prompts without one hit, since the start as well (vllm#45238: 175; a public log: 511).
_STRUCTURAL_BLOCKS = 100
_WORTH_BLOCKS, _SEVERAL_PROMPTS = 4, 3
_SPREAD = 4.0
TEST = (
    "send one prompt of at least two blocks and one token three times, alone: hits that grow at the second or third (on"
    " hybrids whose states are kept at the end of a block the third) show that the cache works"
)


def prefix_cache_below_block(s: Symptoms) -> Finding | None:
    """No prefix can ever fill one block."""
    asked = _asked(s)
    if asked is None or asked.rate >= _NONE or _is_unwired(s):
        return None
    sure = _below_block(s, asked)
    if sure is None or (sure.level != "high" and is_full(s) is not None):
        return None
    block = _block(s)
    longest = number(s.window.limits.max_model_len)
    what = "no prefix can fill one block" if sure.level == "high" else "what prompts share is shorter than one block"
    return Finding(
        code="prefix_cache_below_block",
        severity=Severity.WARNING,
        message=f"the prefix cache hits nothing ({asked.hits:,.0f} of {asked.queries:,.0f} tokens) because {what}:"
        f" a block has {block or 0:,.0f} tokens"
        + (f", a prompt {s.prompt_mean:,.0f} on average" if s.prompt_mean else ""),
        evidence=_evidence(s, asked, max_model_len_tokens=longest, blocks_without_hit=_blocks_without_hit(s, asked)),
        sure=sure,
        refuted_by=TEST,
        actions=(
            Action(
                "put what is shared first and together, so that it fills a whole block; or a smaller --block-size"
                " where the attention backend takes one (hybrids fix it by their state: kvbudget plan shows the block)",
                Cost.FREE,
                "prefix_cache_hits_total grows by whole blocks",
            ),
            Action(
                "or turn the cache off: --no-enable-prefix-caching (on hybrids it costs alignment)",
                Cost.FREE,
                "on some hybrids the block gets smaller and more requests fit",
            ),
            Action(
                "where max_model_len is below the block: raise it, if the pool allows",
                Cost.FREE,
                "only then can a block fill at all",
            ),
        ),
    )


def prefix_cache_too_small(s: Symptoms) -> Finding | None:
    """There is something to share, and it is pushed out before it is asked for again."""
    asked = _asked(s)
    if asked is None or asked.rate >= _HALF or _is_unwired(s) or (asked.rate < _NONE and _below_block(s, asked)):
        return None
    sure = _pushed_out(s, asked)
    if sure is None or is_full(s) is not None:  # a full pool has no room for a cache either: that follows from it
        return None
    before = f", it was {asked.before:.0%} before" if asked.before is not None and asked.before >= _WAS_GOOD else ""
    kept = kept_s(s, asked)
    lasts = f"; what is cached lasts about {kept:,.1f} s" if kept is not None else ""
    return Finding(
        code="prefix_cache_too_small",
        severity=Severity.WARNING,
        message=f"the prefix cache is too small for what is shared: {asked.rate:.1%} of prompt tokens hit{before},"
        f" while {(s.usage_high or 0) * 100:.0f} % of the pool is held by running requests{lasts}",
        evidence=_evidence(s, asked, cache_lasts_s=kept),
        sure=sure,
        refuted_by="the same low rate at an hour in which usage is below 0.5: then little is shared",
        actions=(
            Action(
                "send requests that share a beginning to the same instance, one after the other (prefix-aware routing)",
                Cost.FREE,
                "hit rate rises without a larger pool",
            ),
            Action(
                "let fewer run at once, so that more of the pool is left to the cache",
                Cost.FREE,
                "usage falls, hit rate rises; TTFT tells whether it pays",
                Lever.LOWER_CONCURRENCY,
            ),
            Action("8-bit KV cache: --kv-cache-dtype fp8", Cost.QUALITY, "twice the blocks", Lever.EIGHT_BIT_CACHE),
            Action(
                "offload the cache to the machine's memory (--kv-offloading-size, LMCache)",
                Cost.MONEY,
                "external_prefix_cache_hits_total grows",
            ),
            Action("one more replica, with prefix-aware routing", Cost.MONEY, "twice the cache", Lever.REPLICA),
        ),
    )


def prefix_cache_no_sharing(s: Symptoms) -> Finding | None:
    """Prompts are long enough to hit, the cache has room, and nothing comes twice."""
    asked = _asked(s)
    if asked is None or asked.rate >= _NONE or _is_unwired(s):
        return None
    if _below_block(s, asked) or _pushed_out(s, asked) or is_full(s) is not None:
        return None
    block, prompt = _block(s), s.prompt_mean
    long_enough = block is not None and prompt is not None and prompt >= _ABOVE_A_BLOCK * block
    pressed = (s.usage_high or 0) >= _PRESSED
    if s.window.since_start or pressed or not long_enough or number(s.totals.prefix_hits):
        sure = Sure("low", "what is shared is not told" + ("; the pool is under pressure" if pressed else ""))
    else:
        sure = Sure("medium", "prompts are several blocks long and the pool has room, so that a shared block would hit")
    mean = (
        f"prompts have {prompt:,.0f} tokens on average, a block {block:,.0f}" if prompt and block else "lengths unknown"
    )
    return Finding(
        code="prefix_cache_no_sharing",
        severity=Severity.INFO,
        message=f"nothing is shared: {asked.hits:,.0f} of {asked.queries:,.0f} prompt tokens hit the prefix cache,"
        f" which is on and has room ({mean}): prompts differ from their first block on",
        evidence=_evidence(s, asked),
        sure=sure,
        refuted_by=f"{TEST}; a TTFT that falls for repeated prompts while hits stay 0 means that they are not counted",
        actions=(
            Action(
                "move what changes (date, user name, request id) behind what is the same for all: system prompt, tools,"
                " documents",
                Cost.FREE,
                "hit rate rises with the length of what is shared; TTFT falls",
            ),
            Action(
                "leave it as it is if prompts really differ: the cache takes blocks that are free anyway",
                Cost.FREE,
                "nothing changes",
            ),
        ),
    )


def counter_unwired(s: Symptoms) -> Finding | None:
    """Hits stay at 0 although prompts are answered as if they hit (vllm-ascend#16639: TTFT 5.5 s -> 0.8 s)."""
    if not _is_unwired(s):
        return None
    cached = _cached(s)
    how = (
        f"{cached:,.0f} prompt tokens came from a cache by another counter"
        if cached
        else "first tokens of alike prompts come at very different times while nobody waits"
    )
    return Finding(
        code="counter_unwired",
        severity=Severity.INFO,
        message=f"the hit counter of the prefix cache stands at 0, and yet {how}: it is not wired, conclude nothing"
        " from it",
        evidence=s.evidence(
            cached_prompt_tokens=cached,
            ttft_fast_s=_quantile(s.window.ttft_s, 0.25),
            ttft_slow_s=_quantile(s.window.ttft_s, 0.75),
        ),
        sure=Sure("high" if cached else "low", "two counters of the same engine" if cached else "by TTFT alone"),
        refuted_by=TEST,
        actions=(
            Action(
                "watch TTFT of a repeated prompt instead of the hit counter, and report it to the engine's authors",
                Cost.FREE,
                "a repeated prompt answers sooner when the cache works",
            ),
        ),
    )


class _Asked:
    """Tokens that were looked up in the cache, and those that were found."""

    __slots__ = ("before", "hits", "queries", "rate")

    def __init__(self, queries: float, hits: float, before: float | None) -> None:
        self.queries, self.hits, self.before = queries, hits, before
        self.rate = min(1.0, hits / queries)


def _asked(s: Symptoms) -> _Asked | None:
    """None where too little was asked, or the cache is off."""
    if s.window.limits.prefix_caching is False:
        return None
    counts = s.totals if s.window.since_start else s.counts
    queries, hits = number(counts.prefix_queries), number(counts.prefix_hits)
    if queries is None or hits is None or queries < _ASKED_TOKENS:
        return None
    ever_asked, ever_hit = number(s.totals.prefix_queries), number(s.totals.prefix_hits)
    before = None
    if ever_asked is not None and ever_hit is not None and ever_asked - queries >= _ASKED_TOKENS:
        before = max(0.0, min(1.0, (ever_hit - hits) / (ever_asked - queries)))
    return _Asked(queries, hits, before)


def _block(s: Symptoms) -> float | None:
    pool = s.window.limits.pool
    told = [s.window.limits.largest_block, s.window.limits.smallest_block, None if pool is None else pool.block_size]
    return next((size for size in map(number, told) if size), None)


def is_structural(finding: Finding) -> bool:
    """Whether so much was asked of blocks so large without a single hit that no other figure is needed to say so."""
    blocks = finding.evidence.get("blocks_without_hit")
    return finding.code == "prefix_cache_below_block" and isinstance(blocks, float) and blocks >= _STRUCTURAL_BLOCKS


def _blocks_without_hit(s: Symptoms, asked: _Asked) -> float | None:
    """Blocks' worth of prompts that were looked up since the start, of a large block that never hit; else None."""
    block = _block(s)
    if block is None or block < _LARGE_BLOCK or asked.hits or number(s.totals.prefix_hits):
        return None
    return max(asked.queries, number(s.totals.prefix_queries) or 0.0) / block


def _below_block(s: Symptoms, asked: _Asked) -> Sure | None:
    block, prompt = _block(s), s.prompt_mean
    longest = number(s.window.limits.max_model_len)
    if block is None:
        return None
    if longest is not None and longest < block:
        return Sure("high", "max_model_len is smaller than one block: the cache can never hit")
    if prompt is not None and prompt < block:
        return Sure("medium", "prompts are shorter than one block on average")
    never = _blocks_without_hit(s, asked)
    if never is not None and never >= _STRUCTURAL_BLOCKS:
        why = f"{never:,.0f} blocks' worth of prompts without a single hit, or nothing is shared at all"
        return Sure("medium", why)
    if block >= _LARGE_BLOCK and (prompt is None or prompt < _FAR_LONGER * block):
        return Sure("medium", "a block is longer than what prompts usually share")
    if block >= _LARGE_BLOCK:
        return Sure("low", "a block is large, but prompts are far longer: they may share nothing at all")
    return None


def _pushed_out(s: Symptoms, asked: _Asked) -> Sure | None:
    """A low rate alone says nothing of the size: there may be no more to find. Either more was found before, or some
    requests find all that they share, others of the same kind nothing."""
    usage = s.usage_high
    if usage is None or s.window.since_start:
        return None
    fell = asked.before is not None and asked.before >= _WAS_GOOD and asked.rate <= _FELL * asked.before
    if fell and usage >= _HALF_PRESSED:
        return Sure("medium", "the rate fell, and running requests hold most of the pool")
    if asked.rate < _NONE or not (fell or _all_or_nothing(s)):
        return None
    more = "the rate fell" if fell else "some find all and others nothing"
    kept = kept_s(s, asked)
    if kept is not None and kept < _SOON_S:
        return Sure("medium", f"{more}, and what is computed takes the place of all that is cached every {kept:.1f} s")
    if s.window_s is None and _computed(s, asked) >= _OVER_AND_OVER * (s.pool_tokens or _NEVER):
        return Sure("low", f"{more}, and several times the whole pool was computed within the window")
    return None


def _all_or_nothing(s: Symptoms) -> bool:
    """Whether some requests find what they share and others nothing of it; where all find the same there is no more."""
    told = s.window.computed_lengths
    few, many = (None, None) if told is None else (told.quantile(0.1), told.quantile(1 - _MISSED))
    return few is not None and many is not None and few[1] < many[0]


def kept_s(s: Symptoms, asked: "_Asked") -> float | None:
    """How long a cached block lasts: the part of the pool that requests leave, over the tokens computed in a second."""
    rate = _computed(s, asked) / s.window_s if s.window_s else 0.0
    if not s.pool_tokens or not rate:
        return None
    return s.pool_tokens * (1 - (s.last.usage or 0.0)) / rate


def _computed(s: Symptoms, asked: "_Asked") -> float:
    return asked.queries - asked.hits + s.happened("generation_tokens")


def _is_unwired(s: Symptoms) -> bool:
    """Whether another figure contradicts a hit counter of 0."""
    if number(s.counts.prefix_hits) or number(s.totals.prefix_hits):
        return False
    if _cached(s):
        return True
    lengths, fast, slow = s.window.prompt_lengths, _quantile(s.window.ttft_s, 0.25), _quantile(s.window.ttft_s, 0.75)
    if s.window.since_start or s.last.waiting or lengths is None or not fast or not slow or slow < _SPREAD * fast:
        return False
    short, long = lengths.quantile(0.1), lengths.quantile(0.9)
    waited = None if s.window.queue_s is None else _quantile(s.window.queue_s, 0.9)
    return short is not None and short == long and waited is not None and waited < fast


def _cached(s: Symptoms) -> float:
    """Prompt tokens that came from the engine's own cache by other counters than that of hits."""
    names = ("prompt_tokens_cached", "prompt_tokens_local_cache_hit")
    external = s.figure("external_prefix_hits") or 0.0
    return max(0.0, max(s.figure(name) or 0.0 for name in names) - external)


def _quantile(told: Distribution | None, share: float) -> float | None:
    """The upper end of the bucket in which it lies; None where that is open."""
    found = None if told is None else told.quantile(share)
    return None if found is None else number(found[1])


def _evidence(s: Symptoms, asked: _Asked, **more: float | None) -> dict[str, float | str | None]:
    return s.evidence(
        usage_high_share=s.usage_high,
        prefix_queries_tokens=asked.queries,
        prefix_hits_tokens=asked.hits,
        hit_rate_share=asked.rate,
        hit_rate_before_share=asked.before,
        block_tokens=_block(s),
        prompt_mean_tokens=s.prompt_mean,
        **more,
    )


def prefix_cache_off(s: Symptoms) -> Finding | None:
    """The engine says that it has none; a note alone where prompts are too few or too short to be worth caching."""
    if s.window.limits.prefix_caching is not False:
        return None
    worth = _worth_caching(s)
    block, prompt = _block(s), s.prompt_mean
    words = "prefix caching is off: equal beginnings are computed and held once for each request"
    if worth and prompt and block:
        words += f"; prompts have {prompt:,.0f} tokens on average, {prompt / block:,.0f} blocks of {block:,.0f}"
    return Finding(
        code="prefix_cache_off",
        severity=Severity.WARNING if worth else Severity.INFO,
        message=words,
        evidence=s.evidence(prompt_mean_tokens=prompt, prompt_tokens=s.grew("prompt_tokens"), block_tokens=block),
        sure=Sure("high", "by the engine's own configuration; whether prompts share is not told while it is off"),
        refuted_by="a start-up log with enable_prefix_caching=True; or hits that stay 0 once it is on: then nothing is"
        " shared, and it may be off",
        actions=(
            Action(
                "--enable-prefix-caching, where requests share a beginning (on hybrids plan first: blocks get larger)",
                Cost.FREE,
                "prefix_cache_hits_total grows, TTFT falls; the cache takes only blocks that are free",
            ),
        ),
        note=not worth,
    )


def _worth_caching(s: Symptoms) -> bool:
    """Whether several prompts of several blocks each were computed within the window, by an engine that could cache."""
    block, prompt, asked = _block(s), s.prompt_mean, s.happened("prompt_tokens")
    if s.figure("embedded_engine") or block is None or prompt is None:
        return False
    return prompt >= _WORTH_BLOCKS * block and asked >= max(_ASKED_TOKENS, _SEVERAL_PROMPTS * prompt)
