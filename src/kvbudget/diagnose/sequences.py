"""Decides whether the limit of sequences ends the count with room left in the pool, or the pool is far too large."""

from kvbudget.diagnose.compute import prefill_is_the_limit
from kvbudget.diagnose.finding import Action, Cost, Finding, Lever, Severity, Sure
from kvbudget.diagnose.fullness import FULL, NEARLY, is_full
from kvbudget.diagnose.symptoms import Symptoms, number

# vLLM 0.32 engine/arg_utils.py: 256 or 1024 by card, 128 a CPU rank; older ones 256; the rest is what people set.
USUAL_LIMITS = (16, 32, 64, 128, 256, 512, 1024, 2048)
_HARDLY_BELOW = 0.95
_INFERRED_WAITING = 2
_GREW = 3
# Engines that let in by what a request may come to hold: a queue with free blocks is theirs first (budget.py).
RESERVING = ("sglang", "tgi", "trtllm", "trtllm-triton")
# A pool that holds this many times what can run is too large by as much (public log of a Qwen3-VL-30B-A3B: 2.8).
_OVERSIZED = 2.0
_FAR_OVERSIZED = 2.5
_HARDLY_USED = 0.10
_BUSY = 4
_SHORT_S = 10
_MOST_AT_ONCE = 256
_EXACT = 1e-9  # 256 x 0.95 / 0.8 is 304, and a float says less


def seqs_full(s: Symptoms) -> Finding | None:
    """As many run as may, and others wait although the pool has room."""
    sure = _limit_reached(s)
    if sure is None:
        return None
    last, limit = s.last, s.max_num_seqs or s.running_high or 0
    running, usage = (s.running_high or 0, s.usage_high) if s.pinned else (last.running or 0, last.usage)
    room = None if not usage else int(limit * FULL / usage + _EXACT)
    more = min(room, 2 * limit) if room is not None and room > limit else None
    told = "" if s.max_num_seqs is not None else " (inferred: it is not exported; tell it with --max-num-seqs)"
    return Finding(
        code="seqs_full",
        severity=Severity.CRITICAL,
        message=f"{running:,} run, which is max_num_seqs{told}, and {last.for_room or last.waiting:,} wait, while"
        f" {_share(usage)} of the pool is in use: places are full, not the pool",
        evidence=s.evidence(
            waiting_for_room_requests=last.for_room,
            max_num_seqs_requests=limit,
            max_num_seqs_source="told" if s.max_num_seqs is not None else "inferred",
            preemptions=s.grew("preemptions"),
            pool_would_hold_requests=room,
        ),
        sure=sure,
        refuted_by="a number running that moves while the queue stays, or a start-up log with a larger max_num_seqs",
        actions=(
            Action(
                "raise --parallel, and --ctx-size by as much: slots share the context"
                if s.window.engine == "llamacpp"
                else "raise --max-num-seqs" + (f" to {more:,}" if more else ""),
                Cost.FREE,
                f"the pool holds about {room:,} of these at 95 %; the queue goes, each answer's tokens/s falls somewhat"
                if room
                else "the queue goes as long as usage stays below 0.95",
                Lever.RAISE_THE_LIMIT,
                more,
            ),
            Action(
                "keep the limit, and let the gate queue with deadlines",
                Cost.FREE,
                "those that cannot be served in time are told so at once with 429 and Retry-After",
            ),
            Action(
                "one more replica behind one gate",
                Cost.MONEY,
                "twice the places; only where tokens/s per answer may not fall",
                Lever.REPLICA,
            ),
        ),
    )


def _limit_reached(s: Symptoms) -> Sure | None:
    last, high = s.last, s.running_high
    if not (last.running or s.pinned) or not high or not last.for_room or s.happened("preemptions"):
        return None
    if s.max_num_seqs is not None:
        full = s.holds(lambda look: (look.running or 0) >= _limit(s) * 0.98 and bool(look.for_room))
        if not full or (s.usage_high or 0) >= FULL or prefill_is_the_limit(s) == "steps":
            return None
        return Sure("high", "max_num_seqs is told, and so many run")
    usage = s.usage_high
    if s.window.engine == "llamacpp" and s.pinned and s.always(lambda look: bool(look.for_room)):
        return Sure("medium", "llama.cpp lets a request wait for one reason only: no slot is free")
    if usage is None or usage >= NEARLY or s.window.engine in RESERVING or last.for_room < _INFERRED_WAITING:
        return None
    if is_full(s) is not None or prefill_is_the_limit(s):
        return None
    return _inferred(s, high)


def _inferred(s: Symptoms, high: int) -> Sure | None:
    """What the numbers running and waiting say of a limit that nobody tells, of an engine with free blocks."""
    last = s.last
    at = "at every look" if s.still else "at nearly every look"
    usual = high in USUAL_LIMITS and (s.pinned or (last.running or 0) >= _HARDLY_BELOW * high)
    if s.pinned and usual:
        return Sure("medium", f"exactly {high} run {at}, a usual limit, with a queue and free blocks")
    if usual:
        return Sure("low", f"{high} is a usual limit, but it was not seen to stand still")
    if s.pinned and s.always(lambda look: bool(look.for_room)):
        return Sure("low", f"the same number runs {at} of {len(s.looks)}, with a queue and free blocks")
    if s.pinned and (last.for_room or 0) >= _GREW and s.waiting_rise >= _GREW:
        return Sure("low", f"a queue grew beside free blocks, and still the same number runs ({high})")
    return None


def _limit(s: Symptoms) -> int:
    return s.max_num_seqs or 0


def over_provisioned(s: Symptoms) -> Finding | None:
    """The pool holds far more than can ever run."""
    found = _far_too_large(s)
    if found is None:
        return None
    times, sure, words = found
    pool = s.window.limits.pool
    limit = s.max_num_seqs
    return Finding(
        code="over_provisioned",
        severity=Severity.INFO,
        message=f"the pool is larger than what can run: {words}",
        evidence=s.evidence(
            usage_high_share=s.usage_high,
            max_num_seqs_requests=limit,
            max_concurrency_requests=None if pool is None else pool.max_concurrency,
            pool_over_need_times=times,
            pool_tokens=s.pool_tokens,
        ),
        sure=sure,
        refuted_by="a peak hour with usage above 0.5: look at a day (a Prometheus URL with --window), not a minute",
        actions=(
            Action(
                "raise --max-num-seqs, or --max-model-len, if there are requests for it",
                Cost.FREE,
                "the same memory serves more at once, or longer ones",
                Lever.RAISE_THE_LIMIT,
                None if limit is None else int(limit * times),
            ),
            Action(
                "give memory away: lower --gpu-memory-utilization, or serve a second model on the card",
                Cost.FREE,
                f"up to {1 - 1 / times:.0%} of the pool is never needed",
            ),
            Action(
                "a smaller card, or fewer of them", Cost.MONEY, "saves money: kvbudget plan --solve says what is enough"
            ),
        ),
    )


def _far_too_large(s: Symptoms) -> tuple[float, Sure, str] | None:
    """(times, how sure, in words)."""
    last, usage, each = s.last, s.usage_high, s.share_each
    if usage is None or s.happened("preemptions"):
        return None
    pool = s.window.limits.pool
    whole = None if pool is None else number(pool.max_concurrency)
    limit = s.max_num_seqs
    if limit is not None and whole is not None and whole >= _OVERSIZED * limit:
        words = f"it holds {whole:.1f} requests of full length, max_num_seqs is {limit} ({whole / limit:.1f} times)"
        return whole / limit, Sure("high", "by the engine's own figures, whatever the load"), words
    if last.waiting or not last.running or each is None:
        return None
    if limit is not None and limit * each <= 1 / _OVERSIZED and last.running >= limit:
        times = 1 / (limit * each)
        return (
            times,
            Sure("medium", "at the present size of requests"),
            f"all {limit} places take {limit * each:.0%} of it",
        )
    if not s.several or not s.pinned or (s.window_s is not None and s.window_s < _SHORT_S):
        return None
    holds = int(1 / each)
    turned_over = (s.finished or 0) >= last.running
    if whole is not None and whole >= _OVERSIZED * last.running and usage <= 1 / _OVERSIZED and turned_over:
        words = f"{last.running} run, no more although requests come and go, and it holds {whole:.1f} of full length"
        return whole / last.running, Sure("medium", "the number running stood still while requests ended"), words
    untimed = s.window_s is None and last.running >= _BUSY and usage <= 1 / _OVERSIZED
    if untimed and whole is not None and whole >= _FAR_OVERSIZED * last.running:
        words = f"{last.running} run at both looks, and it holds {whole:.1f} of full length"
        return whole / last.running, Sure("low", "the number running stood still; how long is not told"), words
    if usage <= _HARDLY_USED and last.running >= _BUSY:
        words = f"{last.running} run and take {usage:.1%} of it: it would hold {holds:,} like them"
        level = "medium" if holds >= 4 * _MOST_AT_ONCE or len(s.looks) > 10 else "low"
        return 1 / max(usage, 0.01), Sure(level, f"{len(s.looks)} looks; a busier hour may need it"), words
    return None


def _share(usage: float | None) -> str:
    return "an unknown share" if usage is None else f"{usage * 100:.0f} %"
