"""`kvbudget diagnose`: says what is wrong with an engine's KV cache, how sure that is, and what to do first."""

import argparse
import json
import sys
import time
from collections.abc import Callable

from kvbudget.cli.output import written_out
from kvbudget.diagnose.finding import SCHEMA, Diagnosis, document
from kvbudget.diagnose.verdict import HEALTHY, diagnose
from kvbudget.edge.observing.observe import LIVE_WINDOW_S, Observer
from kvbudget.engines.window import Observation
from kvbudget.errors import BadValueError, UnsupportedError, printable

_SHORTEST_S, _LONGEST_S = 0.1, 31 * 86_400
_EVERY_S = 10.0
EPILOG = f"""\
examples:
  kvbudget diagnose http://127.0.0.1:8000/metrics              # two scrapes, 10 s apart
  kvbudget diagnose http://127.0.0.1:8000/metrics --watch      # live, until Ctrl-C
  kvbudget diagnose older.prom newer.prom --json               # two saved scrapes, the older first
  kvbudget diagnose http://127.0.0.1:9090 --window 3600        # the last hour, from a Prometheus server
  kvbudget diagnose vllm.log --max-num-seqs 256                # the periodic lines of an engine's log
  kvbudget diagnose older.prom newer.prom --budget kvbudget.toml   # what each action would give, by the planner

One scrape tells little: counters are since the engine's start, and old ones raise no alarm. Findings are in order of
cause; the first is the verdict. Every figure it rests on is under evidence (schema {SCHEMA}).
exit: 0 healthy; 1 a finding, or not enough data; 2 usage, or a source that cannot be read."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="URL of an engine's or the gate's /metrics, or of a Prometheus server; one or two saved scrapes, the older"
        " first; or an engine's log",
    )
    parser.add_argument(
        "--window",
        metavar="S",
        type=float,
        help="seconds to look at: between two scrapes of a live engine (default 10), between two files (where they do"
        " not tell), back in time of a Prometheus server (default 600)",
    )
    parser.add_argument("--watch", action="store_true", help="look again and again, until interrupted (live URLs only)")
    parser.add_argument(
        "--every", metavar="S", type=float, help=f"seconds between looks of --watch (default --window, or {_EVERY_S:g})"
    )
    parser.add_argument(
        "--max-num-seqs", metavar="N", type=int, help="the engine's limit of sequences, which vLLM does not export"
    )
    parser.add_argument(
        "--budget", metavar="FILE", help="a kvbudget.toml: every action says what the planner expects of it"
    )
    parser.add_argument("--plan", metavar="'MODEL FLAGS'", help="the same from what kvbudget plan takes, in quotes")
    parser.add_argument(
        "--json", action="store_true", help=f"one JSON document (schema {SCHEMA}); one a line with --watch"
    )


def run(args: argparse.Namespace) -> int:
    """Look, judge, print; 0 when healthy, 1 when not. Raises InputError for what cannot be read."""
    _check(args)
    diagnosed = _judge(args)
    if args.watch:
        return _watch(args, diagnosed)
    try:
        seen = Observer(args.sources, args.window, sleep=_saying(args)).observe()
    except UnsupportedError as error:  # it can be read, and tells of no engine: that is too little, not a wrong call
        seen = Observation(problems=(str(error),))
    found = diagnosed(seen)
    with written_out():
        if args.json:
            print(json.dumps(document(found), allow_nan=False))
        else:
            from kvbudget.report.diagnosed import diagnosis_lines

            print("\n".join(map(printable, diagnosis_lines(found))))
    return 0 if found.verdict == HEALTHY else 1


def _check(args: argparse.Namespace) -> None:
    for name in ("window", "every"):
        value = getattr(args, name)
        if value is not None and not _SHORTEST_S <= value <= _LONGEST_S:
            raise BadValueError(
                f"--{name}: {value:g} s is out of range", fix=f"from {_SHORTEST_S:g} s to {_LONGEST_S} s (31 days)"
            )
    if args.max_num_seqs is not None and args.max_num_seqs < 1:
        raise BadValueError(f"--max-num-seqs: {args.max_num_seqs} is no limit", fix="give it as the engine was started")
    if args.budget is not None and args.plan is not None:
        raise BadValueError("--budget and --plan both say what is planned", fix="leave one away")
    if args.every is not None and not args.watch:
        raise BadValueError("--every is of --watch alone", fix="add --watch, or leave it away")


def _judge(args: argparse.Namespace) -> Callable[[Observation], Diagnosis]:
    """With a plan at hand, its limit of sequences is known, and what each action would give."""
    if args.budget is None and args.plan is None:
        return lambda seen: diagnose(seen, args.max_num_seqs)
    from kvbudget.cli.diagnosing.expecting import Expecting, plan_of_budget, plan_of_flags

    plan = plan_of_budget(args.budget) if args.budget is not None else plan_of_flags(args.plan)
    limit = args.max_num_seqs or plan.settings.max_num_seqs
    expecting = Expecting(plan)
    return lambda seen: expecting.told(diagnose(seen, limit), seen)


def _saying(args: argparse.Namespace) -> Callable[[float], None]:
    """Waits as asked; at a terminal it says first that a window runs, once."""
    if sys.stderr is None or not sys.stderr.isatty():
        return time.sleep
    from kvbudget.cli.diagnosing.watching import looking

    unsaid = iter([f"{looking(args.window or LIVE_WINDOW_S, args.sources)} ..."])

    def wait(seconds: float) -> None:
        for line in unsaid:  # once, also where several addresses are waited for in threads of their own
            print(line, file=sys.stderr, flush=True)
        time.sleep(seconds)

    return wait


def _watch(args: argparse.Namespace, diagnosed: Callable[[Observation], Diagnosis]) -> int:
    from kvbudget.cli.diagnosing.watching import Watch, ctrl_c, looking

    for source in args.sources:
        if not source.startswith(("http://", "https://")):
            raise BadValueError(
                f"--watch: {printable(source, 200)} is no URL, and a file does not change",
                fix="give the URL of a /metrics, or of a Prometheus server",
            )
    every_s = args.every or args.window or _EVERY_S
    window_s = args.window or every_s

    def look() -> Observation:
        return observer.observe()

    with ctrl_c() as pressed:
        watch = Watch(look, diagnosed, every_s, window=looking(window_s, args.sources), interrupted=pressed)
        observer = Observer(args.sources, window_s, sleep=watch.waiting)
        try:
            return watch.as_json() if args.json else watch.on_screen()
        except KeyboardInterrupt:
            return watch.code
