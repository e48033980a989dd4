"""Decides whether the steps are full of prompts, so that requests wait although pool and places have room."""

from kvbudget.diagnose.actions import MAX_NUM_SEQS, SECOND_SCRAPE
from kvbudget.diagnose.finding import Action, Cost, Finding, Lever, Severity, Sure
from kvbudget.diagnose.fullness import NEARLY, is_full
from kvbudget.diagnose.symptoms import Symptoms, mean_of, number

# llm-d-autoscaling#662: 6,000 in and 2 out saturate at usage 0.32; vllm#13508: low usage, low running, a queue.
_PROMPT_OVER_OUTPUT = 10
_PROMPT_PER_RUNNING = 500
# With as many running as a usual limit the same has to be plain: every place got a whole long prompt in the window.
_PROMPT_PER_PLACE = 4_000
_NOTHING_GENERATED = 100_000
_FULL_STEP = 0.8
_WAITING = 3
_PLACES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_BY_ELIMINATION = ("vllm", "lmdeploy", "dynamo")
_RESERVING = "sglang"


def prefill_is_the_limit(s: Symptoms) -> str:
    """ "steps": they are as large as they may be; "prompts": what is computed is prompts, and much of it; else ""."""
    steps, most = mean_of(s.window.step_tokens), number(s.window.limits.max_num_batched_tokens)
    if steps and most and steps >= _FULL_STEP * most:
        return "steps"
    prompt, output, running = s.grew("prompt_tokens"), s.happened("generation_tokens"), s.running_high
    if prompt is None or not running or prompt < _PROMPT_OVER_OUTPUT * output:
        return ""
    if not output and prompt < _NOTHING_GENERATED:
        return ""
    at_a_limit = s.pinned and running in _PLACES
    return "prompts" if prompt / running >= (_PROMPT_PER_PLACE if at_a_limit else _PROMPT_PER_RUNNING) else ""


def compute_bound(s: Symptoms) -> Finding | None:
    """What is computed in a step is the limit."""
    sure = _bound(s)
    if sure is None:
        return None
    last, prompt = s.last, s.grew("prompt_tokens")
    rate = prompt / s.window_s if prompt and s.window_s else None
    words = (
        f"{last.for_room:,} wait while {(s.usage_high or 0) * 100:.0f} % of the pool is in use and {last.running:,} run"
    )
    if prompt:
        words += f"; {prompt:,.0f} prompt tokens in the window" + (f" ({rate:,.0f}/s)" if rate else "")
        words += f" against {s.happened('generation_tokens'):,.0f} generated"
    guessed = sure.level == "low"
    words += (
        ": pool and places have room as far as it is told, so that what a step computes is left"
        if guessed
        else ": prefill takes the steps, memory is not what they wait for"
    )
    return Finding(
        code="compute_bound",
        severity=Severity.CRITICAL,
        message=words,
        evidence=s.evidence(
            usage_high_share=s.usage_high,
            prompt_tokens=prompt,
            generation_tokens=s.grew("generation_tokens"),
            prompt_tokens_per_s=rate,
            step_mean_tokens=mean_of(s.window.step_tokens),
            max_num_batched_tokens=number(s.window.limits.max_num_batched_tokens),
            prompt_mean_tokens=s.prompt_mean,
            ttft_mean_s=mean_of(s.window.ttft_s),
        ),
        sure=sure,
        refuted_by="a queue that stays when prompts stop coming, or steps far below max_num_batched_tokens",
        collect=(MAX_NUM_SEQS, SECOND_SCRAPE) if guessed and s.max_num_seqs is None else (),
        actions=(
            Action(
                "raise --max-num-batched-tokens (8192 or more for throughput; gaps between tokens grow)",
                Cost.FREE,
                "prompt tokens/s rise where the card was not full; TTFT falls",
            ),
            Action(
                "share prefixes: the same beginning in the same order, prefix caching on",
                Cost.FREE,
                "prompt tokens that hit are not computed; TTFT falls",
            ),
            Action("send shorter prompts: fewer documents, a summary", Cost.QUALITY, "TTFT falls in proportion"),
            Action(
                "one more replica behind one gate (not more memory: the pool is not full)",
                Cost.MONEY,
                "twice the prompt tokens/s",
                Lever.REPLICA,
            ),
        ),
    )


def _bound(s: Symptoms) -> Sure | None:
    last, usage = s.last, s.usage_high
    if not last.for_room or last.for_room < _WAITING or not last.running or usage is None or usage >= NEARLY:
        return None
    if s.happened("preemptions") or is_full(s) is not None or not s.always(lambda look: bool(look.for_room)):
        return None
    limited = s.max_num_seqs is not None and last.running >= 0.98 * s.max_num_seqs
    how = prefill_is_the_limit(s)
    if how == "steps":
        return Sure("high", "steps are as large as max_num_batched_tokens lets them be")
    if how == "prompts" and not limited:
        return Sure("medium", "nearly all that is computed is prompts, and neither pool nor places are full")
    if limited or s.pinned or not s.several or s.by_reason("rejected") or s.window.engine not in _BY_ELIMINATION:
        return None
    return Sure("low", "by elimination: pool and places have room, the number running moves, nobody is deferred")
