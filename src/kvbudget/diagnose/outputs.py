"""Decides whether a few requests that go on and on hold the pool."""

from kvbudget.diagnose.finding import Action, Cost, Finding, Lever, Severity, Sure
from kvbudget.diagnose.fullness import FULL, few_hold_all, is_full, is_runaway, run_to_the_window
from kvbudget.diagnose.symptoms import Symptoms, mean_of

_GROWS = 0.003  # of the pool, from the first look to the last


def runaway_output(s: Symptoms) -> Finding | None:
    """A few long answers hold nearly all of the pool; where others wait for it, it is why."""
    behind = is_full(s) is not None and (s.last.usage or 0) >= FULL and _by_answers(s)
    if not is_runaway(s) and not (few_hold_all(s) and behind):
        return None
    last, held, output = s.last, s.held_tokens_each, s.output_mean
    asked = mean_of(s.window.max_tokens)
    words = (
        f"{last.running} {'request holds' if last.running == 1 else 'requests hold'} {(last.usage or 0) * 100:.1f} %"
    )
    words += " of the pool"
    words += f", about {held:,.0f} tokens each" if held else ""
    words += f", while an answer that ended had {output:,.0f}" if output else ""
    words += "; nobody waits yet" if not last.for_room else f"; {last.for_room:,} wait behind them"
    to_the_window = run_to_the_window(s)
    if to_the_window:
        words = (
            f"answers run on to the window: all that ended did so by length, {output or 0:,.0f} tokens after prompts of"
        )
        words += f" {s.prompt_mean or 0:,.0f}; the {s.running_high} that run can hold the whole pool"
    growing = to_the_window or s.usage_rise >= _GROWS or s.happened("generation_tokens") > 0
    return Finding(
        code="runaway_output",
        severity=Severity.WARNING if not last.for_room else Severity.CRITICAL,
        message=words,
        evidence=s.evidence(
            usage_rise_share=s.usage_rise,
            per_request_share=s.share_each,
            held_per_request_tokens=held,
            output_mean_tokens=output,
            max_tokens_mean_tokens=asked,
            generation_tokens=s.grew("generation_tokens"),
            prompt_tokens=s.grew("prompt_tokens"),
        ),
        sure=Sure("high" if growing and s.several else "medium" if s.several else "low", _why(s, growing)),
        refuted_by="prompts as long as what each request holds: then it is the context, not the answer",
        actions=(
            Action(
                "set max_tokens on every request (at the gate: --max-context, or the cap that it writes into the body)",
                Cost.FREE,
                "no answer grows beyond it; usage falls as soon as the present ones end",
            ),
            Action(
                "abort the requests that hold it, by their request id in the engine's log or the gate's access log",
                Cost.FREE,
                "usage falls at once by the share of each",
            ),
            Action(
                "look for loops: repetition penalty, stop strings, a reasoning budget",
                Cost.QUALITY,
                "finished_reason=length becomes rare",
            ),
            Action(
                "8-bit KV cache: --kv-cache-dtype fp8",
                Cost.QUALITY,
                "twice the tokens until the same answers fill it",
                Lever.EIGHT_BIT_CACHE,
            ),
        ),
    )


def _why(s: Symptoms, growing: bool) -> str:
    if not s.several:
        return "one look: that they grow was not seen"
    return "so few hold so much, and go on generating" if growing else "so few hold so much; no growth was seen"


def _by_answers(s: Symptoms) -> bool:
    """Whether what came in the window was generated rather than sent."""
    return s.happened("generation_tokens") > s.happened("prompt_tokens")
