"""Decides the order of retreat that several findings share: limit, length, quantise, then cards."""

from kvbudget.diagnose.finding import Action, Cost, Lever

SECOND_SCRAPE = "a second scrape, 30 to 60 s after the first: kvbudget diagnose OLDER NEWER, or the live URL"
MAX_NUM_SEQS = "max_num_seqs (kvbudget diagnose --max-num-seqs N, or the engine's log beside the scrapes)"

GATE_IN_FRONT = Action(
    "cap max_tokens at what answers use, and put the gate in front: it queues by blocks and lets in what fits",
    Cost.FREE,
    "preemptions stop; waits move from mid-answer to the queue: TTFT may rise, gaps and tokens/s improve",
)
BEHIND_THE_GATE = Action(
    "cap max_tokens at what answers use, and let nothing pass by the gate", Cost.FREE, "fewer blocks a request"
)
PRESSURE = (
    GATE_IN_FRONT,
    Action(
        "shorten the context: --max-model-len at the 99th percentile of prompt + answer",
        Cost.QUALITY,
        "longer requests are refused with 400; the longest ones no longer hold the pool",
        Lever.SHORTEN_CONTEXT,
    ),
    Action(
        "8-bit KV cache: --kv-cache-dtype fp8",
        Cost.QUALITY,
        "a 16-bit cache holds about twice the tokens; test the quality of long answers",
        Lever.EIGHT_BIT_CACHE,
    ),
    Action(
        "quantise the weights",
        Cost.QUALITY,
        "what the weights free goes to the pool; see num_gpu_blocks after the restart",
        Lever.EIGHT_BIT_WEIGHTS,
    ),
    Action(
        "twice the cards for one engine: -tp 2",
        Cost.MONEY,
        "weights split as well, so the pool more than doubles",
        Lever.MORE_CARDS,
    ),
    Action(
        "one more replica behind one gate",
        Cost.MONEY,
        "twice the requests at once; the longest request still has to fit one engine",
        Lever.REPLICA,
    ),
)


def lower_concurrency(fits: int | None) -> Action:
    """The first thing to do: let in what fits."""
    if fits is None:
        return Action(
            "let fewer run at once (clients, the gate, or --max-num-seqs)",
            Cost.FREE,
            "usage falls below 0.95 and preemptions stop",
            Lever.LOWER_CONCURRENCY,
        )
    return Action(
        f"let at most about {fits:,} run at once (clients, the gate, or --max-num-seqs {fits})",
        Cost.FREE,
        f"at their present size {fits:,} hold 95 % of the pool: preemptions stop, tokens/s do not fall",
        Lever.LOWER_CONCURRENCY,
        fits,
    )
