"""Decides which flags reshape a load, for every command that takes one, and how they are read."""

import argparse

from kvbudget.edge.traces.read import TraceOptions


def add_reshaping(group: argparse._ArgumentGroup, *, max_requests: str, max_tokens: str, spread: str) -> None:
    """Declare the flags; what some of them mean differs by command, and is said by their help texts."""
    group.add_argument("--rate-scale", type=float, default=1.0, metavar="X", help="2: twice as fast (default 1)")
    group.add_argument("--max-requests", type=int, metavar="N", help=max_requests)
    group.add_argument("--max-tokens", type=int, metavar="N", help=max_tokens)
    group.add_argument("--window", type=int, metavar="N", help="scale all lengths so that the longest request fits")
    group.add_argument("--length-scale", type=float, metavar="X", help="this factor instead; what is too long is cut")
    group.add_argument("--spread-arrivals", type=float, default=0.0, metavar="S", help=spread)


def reshaping_of(args: argparse.Namespace) -> TraceOptions:
    """What they ask for, with the command's --seed. Raises BadValueError."""
    return TraceOptions(
        rate_scale=args.rate_scale,
        max_requests=args.max_requests,
        max_tokens=args.max_tokens,
        window=args.window,
        length_scale=args.length_scale,
        spread_s=args.spread_arrivals,
        seed=args.seed,
    )
