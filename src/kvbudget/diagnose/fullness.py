"""Decides whether a pool is full, and of what: many requests, few that go on and on, or a footprint that is fixed."""

from kvbudget.diagnose.finding import Sure
from kvbudget.diagnose.symptoms import Seen, Symptoms, number

# A queue below this is not the pool's (SGLang's tuning guide: usage < 0.9 with a queue is a reservation too large).
NEARLY = 0.90
# At this nothing is in doubt (the usual alarm: 0.95 for 5 to 10 minutes).
FULL = 0.95
# A preemption says that an allocation failed; the gauge is read after it has given blocks back.
_AFTER_PREEMPTION = 0.70
_PREEMPTIONS_ALONE = 5
_RESERVED_NOT_USED = ("tgi",)  # its gauge is of input + max_new_tokens of what was let in
_RISE = 0.01  # less than this is no growth
# Requests hold so many times what they could ever use: alignment, not length (vllm#54458: 12 tokens, a third of it).
_FOOTPRINT = 10
_LARGE_BLOCK = 1024
_EACH = 0.15
# sglang#2746: two requests hold 154k tokens each, usage 1.0, nobody waits; vllm#14412: two fill the pool.
_FEW = 4
_SHARE_EACH = 0.10
_RISING_FROM, _GROWS = 0.85, 0.003
_TINY_TOKENS = 2048  # a pool so small that a request of this length fills it is too small (sglang#14972)
_MOSTLY_PROMPT = 0.6
_ENDED, _BY_LENGTH, _ANSWER_OVER_PROMPT = 2, 0.9, 10
NEXT_DOES_NOT_FIT = Sure("medium", "no request of the size of those that run fits what is free")


def starved(look: Seen) -> bool:
    """Somebody waits for room, and there is hardly any."""
    return look.usage is not None and look.usage >= NEARLY and bool(look.for_room)


def next_does_not_fit(look: Seen) -> bool:
    """Somebody waits, and one more like those that run is larger than what is free."""
    if not look.usage or not look.running or not look.for_room or look.usage < _AFTER_PREEMPTION:
        return False
    return look.usage / look.running > 1 - look.usage


def is_full(s: Symptoms) -> Sure | None:
    """Whether the pool is what they wait for, and how sure that is."""
    if s.window.engine in _RESERVED_NOT_USED:
        return None
    preempted = s.happened("preemptions")
    high = s.usage_high
    if preempted and (high is None or high >= _AFTER_PREEMPTION or s.last.for_room or preempted >= _PREEMPTIONS_ALONE):
        if high is not None and high >= NEARLY:
            return Sure("high", "the engine preempted within the window, and the gauge is at its top")
        return Sure("medium", "the engine preempted within the window; the gauge does not show the moment of it")
    if s.figure("no_room"):
        return Sure("high", "the engine itself logged that it found no room in the cache")
    if s.holds(lambda look: bool(look.swapped)) and (high or 0) >= _AFTER_PREEMPTION:
        return Sure("high", "requests are swapped out or paused, which only a full pool makes the engine do")
    limited = s.max_num_seqs is not None and (s.running_high or 0) >= s.max_num_seqs
    if s.holds(starved) and not (limited and (high or 0) < FULL):
        if s.several and s.always(starved) and (s.last.usage or 0) >= FULL:
            return Sure("high", "at every look requests wait and the pool is at its top")
        return Sure("medium", "requests wait and hardly anything is free, but the engine preempted nobody")
    if s.holds(next_does_not_fit) and not limited:
        return NEXT_DOES_NOT_FIT
    return None


def is_runaway(s: Symptoms) -> bool:
    """Few hold nearly all of it, nobody waits, nobody was preempted: the verdict is theirs, not the pool's."""
    return not s.last.for_room and not s.happened("preemptions") and (few_hold_all(s) or run_to_the_window(s))


def run_to_the_window(s: Symptoms) -> bool:
    """Whether hardly an answer ends by itself, and the few that run can come to hold all of the pool at that length."""
    longest, pool, running = number(s.window.limits.max_model_len), s.pool_tokens, s.running_high
    ended = s.by_reason("finished")
    total, output, prompt = sum(ended.values()), s.output_mean, s.prompt_mean
    if not longest or not pool or not running or total < _ENDED or output is None or prompt is None:
        return False
    by_length = ended.get("length", 0.0) / total
    few = running * _SHARE_EACH <= 1
    long = output >= longest / 2 and output >= _ANSWER_OVER_PROMPT * prompt
    return few and by_length >= _BY_LENGTH and long and running * longest >= NEARLY * pool


def few_hold_all(s: Symptoms) -> bool:
    """Whether a few long requests have nearly all of the pool."""
    last, each, held = s.last, s.share_each, s.held_tokens_each
    if not last.running or last.usage is None or each is None or each < _SHARE_EACH:
        return False
    if is_fixed_footprint(s) or (held is not None and held < _TINY_TOKENS):
        return False
    rising = last.usage >= _RISING_FROM and s.usage_rise >= _GROWS and s.pinned
    if not rising and (last.usage < FULL or last.running > _FEW):
        return False
    prompt = s.prompt_mean
    return held is None or prompt is None or prompt < _MOSTLY_PROMPT * held


def is_fixed_footprint(s: Symptoms) -> bool:
    """Whether requests hold far more than their tokens, by blocks that are laid out in advance."""
    each, held = s.share_each, s.held_tokens_each
    prompt, output = s.prompt_mean, s.output_mean
    if not s.several or each is None or held is None or prompt is None or each < _EACH or s.usage_rise > _RISE:
        return False
    if held < _FOOTPRINT * (prompt + (output or 0)):
        return False
    largest = number(s.window.limits.largest_block)
    asked = s.window.max_tokens.mean if s.window.max_tokens is not None else None
    return bool((largest is not None and largest >= _LARGE_BLOCK) or (asked is not None and prompt + asked < held / 3))
