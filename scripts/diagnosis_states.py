"""Decides which states engines are driven into for the labelled corpus: flags, load, and when they are looked at.

What is wrong with each of them is not said here but in `tests/corpus/labels.toml`, by a person who knows what was done.
"""

from dataclasses import dataclass

from diagnosis_loads import Load, ends_by_itself, load, nobody, of_adapter, together


@dataclass(frozen=True, slots=True)
class State:
    """`doing`: what was done, in words. Looked at `settle_s` after the load began, and again `window_s` later.
    `aside`: a load that goes to the engine itself, past the gate."""

    name: str
    doing: str
    load: Load
    settle_s: float = 5.0
    window_s: float = 4.0
    aside: Load | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """States that one start of one engine goes through, in this order. `before`: the state whose newer scrape is the
    older one of our first state: the engine was started anew in between. `gate`: flags of the gate before it, whose
    metrics are recorded too."""

    name: str
    flags: tuple[str, ...]
    states: tuple[State, ...]
    before: str | None = None
    gate: tuple[str, ...] | None = None


SMALL = ("--max-model-len=1024", "--block-size=32", "--num-gpu-blocks-override=65")  # 64 usable blocks, 2,048 tokens
LARGE = ("--max-model-len=1024", "--block-size=32", "--num-gpu-blocks-override=1025")  # 32,768 tokens
WIDE = ("--max-model-len=1024", "--block-size=256", "--num-gpu-blocks-override=33")  # 8,192 tokens

MODERATE = load(3, 192, 100, shared=160, apart_s=0.4)
STORM = load(24, 96, 400, shared=64)

VLLM = (
    Group("small", SMALL, (
        State("just-started", "nobody has asked anything yet", nobody, settle_s=0.5),
        State("moderate", "3 clients, 192 in of which 160 shared, 100 out", MODERATE),
        State("storm", "24 clients, 96 in of which 64 shared, 400 out", STORM, settle_s=8),
        State("idle-after-storm", "nobody asks any more; the storm's preemptions are in the counters", nobody),
        State("quiet-after-storm", "2 clients, 192 in of which 160 shared, 150 out, after the storm",
              load(2, 192, 150, shared=160)),
        State("runaway", "2 clients, 16 in, and every answer runs on to the window of 1,024",
              load(2, 16, 1008, apart_s=1.5), settle_s=12),
        State("aborts", "3 clients that want 400 tokens, hang up after 0.8 s and ask again",
              load(3, 96, 400, shared=64, patience_s=0.8)),
        State("thrash", "3 clients that pick one of 14 prefixes of 384 tokens; 5,376 tokens are shared in all",
              load(3, 416, 16, shared=384, families=14), settle_s=8, window_s=6),
        State("fits", "3 clients that pick one of 3 prefixes of 384 tokens",
              load(3, 416, 16, shared=384, families=3)),
        State("no-sharing", "3 clients, 400 in and 30 out, no two prompts alike", load(3, 400, 30), window_s=6),
        State("one-long", "one client, 900 in of which 448 shared, 100 out", load(1, 900, 100, shared=448)),
    )),
    Group("small-again", (*SMALL, "--kv-cache-metrics", "--kv-cache-metrics-sample=1.0"), (
        State("restarted-moderate", "the engine was started anew since the older scrape; then as moderate", MODERATE),
        State("thrash-sampled", "4 clients that pick one of 12 prefixes of 352 tokens; vLLM samples its blocks",
              load(4, 400, 24, shared=352, families=12), settle_s=8, window_s=6),
        State("no-sharing-sampled", "3 clients, 300 in and 30 out, no two prompts alike; vLLM samples its blocks",
              load(3, 300, 30), window_s=6),
        State("storm-unshared", "30 clients, 64 in and 500 out, no two prompts alike", load(30, 64, 500), settle_s=8),
    ), before="small.one-long"),
    Group("seqs", (*LARGE, "--max-num-seqs=4"), (
        State("full", "24 clients, 64 in of which 32 shared, 200 out; 4 may run", load(24, 64, 200, shared=32)),
        State("full-unshared", "16 clients, 300 in and 100 out; 4 may run", load(16, 300, 100)),
        State("four-of-four", "4 clients, 192 in of which 160 shared, 150 out; nobody waits",
              load(4, 192, 150, shared=160)),
        State("two-of-four", "2 clients, 192 in of which 160 shared, 150 out", load(2, 192, 150, shared=160)),
    )),
    Group("batches", (*LARGE, "--max-num-batched-tokens=32", "--max-num-seqs=24"), (
        State("prefill", "48 clients, 900 in and 2 out, 32 tokens a step", load(48, 900, 2), settle_s=8),
        State("prefill-sharing", "40 clients, 900 in of which 448 shared, 4 out, 32 tokens a step",
              load(40, 900, 4, shared=448), settle_s=8),
        State("decoding", "4 clients, 60 in of which 32 shared, 200 out", load(4, 60, 200, shared=32)),
    )),
    Group("queue-limit", (*SMALL, "--max-num-queued-reqs=4"), (
        State("rejecting", "16 clients, 160 in of which 96 shared, 200 out; 4 may be inside, who is refused asks "
              "again 0.2 s later", load(16, 160, 200, shared=96, pause_s=0.2)),
        State("rejected-once", "2 clients, 192 in of which 160 shared, 150 out; the rejections are in the counters",
              load(2, 192, 150, shared=160)),
    )),
    Group("token-limit", (*LARGE, "--max-num-queued-tokens=1500", "--max-num-batched-tokens=128"), (
        State("rejecting", "16 clients, 800 in of which 64 shared, 20 out; 1,500 tokens may wait",
              load(16, 800, 20, shared=64, pause_s=0.2)),
    )),
    Group("no-cache", (*SMALL, "--no-enable-prefix-caching"), (
        State("moderate", "4 clients that share 320 of 384 tokens, 80 out", load(4, 384, 80, shared=320)),
        State("storm", "24 clients, 96 in of which 64 shared, 400 out", STORM, settle_s=8),
    )),
    Group("wide", WIDE, (
        State("short-prompts", "4 clients, 128 in of which 112 shared, 60 out; a block holds 256",
              load(4, 128, 60, shared=112), window_s=6),
        State("short-prefix", "4 clients, 420 in of which 200 shared, 30 out; a block holds 256",
              load(4, 420, 30, shared=200), window_s=6),
        State("filled", "40 clients, 257 in and 255 out: two blocks each, 16 fill the pool to the last block and none "
              "of them grows", load(40, 257, 255)),
        State("filled-sharing", "40 clients, 513 in of which 256 shared, 255 out: three blocks each, one of them shared",
              load(40, 513, 255, shared=256)),
        State("long-prefix", "4 clients, 700 in of which 512 shared, 30 out; a block holds 256",
              load(4, 700, 30, shared=512)),
    )),
    Group("adapters", (*LARGE, "--enable-lora", "--max-loras=1", "--max-lora-rank=8", "--lora-modules", "a={adapter}", "b={adapter}"), (
        State("lora", "3 clients of adapter a with answers of 700, 8 of adapter b; one adapter fits at a time",
              together(load(3, 96, 700, shared=64, body=of_adapter("a")),
                       load(8, 96, 700, shared=64, body=of_adapter("b")))),
        State("moderate", "5 clients of adapter a, 96 in of which 64 shared, 100 out",
              load(5, 96, 100, shared=64, body=of_adapter("a"))),
    )),
    Group("watermark", (*WIDE, "--watermark=0.6", "--max-num-seqs=64"), (
        State("half-kept-free", "24 clients, 257 in and 255 out, two blocks each; 60 % of the pool is kept free at "
              "admission", load(24, 257, 255), settle_s=8),
    )),
    Group("partly", SMALL, (
        State("all-found", "3 clients, 300 in of which 64 shared by all, 60 out: there is no more to find",
              load(3, 300, 60, shared=64), window_s=6),
        State("all-found-long", "2 clients, 800 in of which 160 shared by all, 40 out: there is no more to find",
              load(2, 800, 40, shared=160), window_s=6),
    )),
    Group("other", ("--max-model-len=1536", "--block-size=64", "--num-gpu-blocks-override=49"), (
        State("storm", "16 clients, 200 in of which 128 shared, 500 out", load(16, 200, 500, shared=128), settle_s=8),
        State("at-ease", "4 clients, 220 in of which 192 shared, 90 out", load(4, 220, 90, shared=192)),
        State("thrash", "3 clients that pick one of 12 prefixes of 512 tokens, 560 in and 20 out",
              load(3, 560, 20, shared=512, families=12), settle_s=8, window_s=6),
        State("all-found", "2 clients, 640 in of which 256 shared by all, 40 out", load(2, 640, 40, shared=256), window_s=6),
        State("runaway", "2 clients, 30 in, and every answer runs on to the window of 1,536", load(2, 30, 1506), settle_s=12),
        State("no-sharing", "2 clients, 500 in and 50 out, no two prompts alike", load(2, 500, 50), window_s=6),
    )),
    Group("other-seqs", ("--max-model-len=2048", "--block-size=32", "--num-gpu-blocks-override=701", "--max-num-seqs=7",
                         "--max-num-queued-reqs=26"), (
        State("full", "20 clients, 120 in of which 96 shared, 500 out; 7 may run", load(20, 120, 500, shared=96), settle_s=8),
        State("rejecting", "40 clients, 120 in of which 96 shared, 500 out; 26 may be inside",
              load(40, 120, 500, shared=96, pause_s=0.3), settle_s=8),
    )),
)  # fmt: skip

BLOCKS_2K = ("--num-blocks=2049", "--block-size=16", "--max-model-len=8192")  # 32,768 tokens
EMBEDDED = (
    Group("mid", (*BLOCKS_2K, "--step-cost=0.03"), (
        State("just-started", "nobody has asked anything yet", nobody, settle_s=0.5),
        State("moderate", "20 clients, 300 in and 200 out", load(20, 300, 200, apart_s=0.1)),
        State("busy", "44 clients, 400 in and 250 out: no room is lacking, nobody waits", load(44, 400, 250, apart_s=0.1), settle_s=9),
        State("storm", "120 clients, 300 in and 600 out", load(120, 300, 600), settle_s=16, window_s=6),
        State("idle-after-storm", "nobody asks any more", nobody),
        State("filling", "60 clients, 1,500 in and 4 out",
              load(60, 1500, 4), window_s=5),
    )),
    Group("mid-again", (*BLOCKS_2K, "--step-cost=0.03"), (
        State("restarted-storm", "the engine was started anew since the older scrape; 120 clients, 300 in and 600 out",
              load(120, 300, 600), settle_s=16, window_s=6),
        State("moderate", "12 clients, 800 in and 100 out", load(12, 800, 100, apart_s=0.1)),
    ), before="mid.filling"),
    Group("quick", (*BLOCKS_2K, "--step-cost=0.003"), (
        State("runaway", "4 clients, 20 in, and every answer runs on to the window of 8,192",
              load(4, 20, 8172), settle_s=19, window_s=9),
    )),
    Group("seqs", ("--num-blocks=8193", "--block-size=16", "--max-model-len=8192", "--max-num-seqs=32", "--step-cost=0.03"), (
        State("full", "80 clients, 300 in and 200 out; 32 may run", load(80, 300, 200)),
        State("full-long", "60 clients, 1,200 in and 100 out; 32 may run", load(60, 1200, 100)),
        State("all-used", "32 clients, 300 in and 200 out; 32 may run and nobody waits", load(32, 300, 200, apart_s=0.05)),
    )),
    Group("tiny", ("--num-blocks=129", "--block-size=16", "--max-model-len=2048", "--step-cost=0.02"), (
        State("storm", "30 clients, 100 in and 300 out, a pool of 2,048 tokens", load(30, 100, 300), settle_s=8),
        State("two", "2 clients, 100 in and 300 out", load(2, 100, 300, apart_s=1.0)),
    )),
    Group("slow-prefill", ("--num-blocks=8193", "--block-size=16", "--max-model-len=8192",
                           "--max-num-batched-tokens=512", "--step-cost=0.005", "--token-cost=0.0002"), (
        State("compute", "30 clients, 5,000 in and 2 out, 512 tokens a step", load(30, 5000, 2), settle_s=8),
        State("compute-mixed", "24 clients, 3,000 in and 20 out, 512 tokens a step", load(24, 3000, 20), settle_s=8),
    )),
    Group("worst-case", (*BLOCKS_2K, "--step-cost=0.03", "--mean-output-tokens=100"), (
        State("budget-full", "60 clients that declare 4,000 tokens and stop after about 100", load(60, 300, 4000, body=ends_by_itself), settle_s=8),
        State("moderate", "4 clients that declare 4,000 tokens and stop after about 100", load(4, 300, 4000, body=ends_by_itself)),
        State("pool-full", "60 clients that declare 600 tokens and use them", load(60, 300, 600), settle_s=10),
        State("bypass", "4 clients at the gate, 20 past it with 600 in and 500 out", load(4, 300, 200),
              aside=load(20, 600, 500), settle_s=8),
    ), gate=("--policy=worst-case",)),
    Group("trajectory", (*BLOCKS_2K, "--step-cost=0.03", "--mean-output-tokens=100"), (
        State("moderate", "8 clients, 300 in and 200 out", load(8, 300, 200)),
        State("budget-full", "80 clients that declare 2,000 tokens and stop after about 100", load(80, 200, 2000, body=ends_by_itself), settle_s=8),
    ), gate=("--policy=trajectory",)),
)  # fmt: skip
