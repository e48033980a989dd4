"""`kvbudget forecast`: how likely demand is to reach 95 % of the pool within the horizon, and how good that was."""

import argparse
import json
import os
from datetime import UTC, datetime
from typing import Any

from kvbudget.cli.output import written_out
from kvbudget.diagnose.forecast.baselines import SATURATED
from kvbudget.diagnose.forecast.forecaster import LONGEST_MINUTES, SHORTEST_MINUTES, Forecast, Forecaster
from kvbudget.diagnose.forecast.interval import NOMINAL
from kvbudget.diagnose.forecast.score import Figures
from kvbudget.edge.demand_series import DemandSeries, read_demand
from kvbudget.edge.whole_file import write_whole
from kvbudget.errors import BadValueError, printable
from kvbudget.units import any_number, is_digits, parse_length

SCHEMA = "kvbudget.forecast/1"
_DEFAULT_COLUMN = "kv_tokens"
_MINUTES = {"": 1, "m": 1, "min": 1, "h": 60, "d": 1440}
EPILOG = """\
examples:
  kvbudget forecast --series demand.csv --capacity-tokens 300000
  kvbudget forecast --series demand.csv --capacity-tokens 300000 --horizon 30m --json
  kvbudget forecast --series demand.csv --capacity-tokens 300000 --backtest rows.csv
  kvbudget forecast --series usage.csv --column usage --usage --capacity-tokens 300000

FILE has a header, one row a minute in order of time: minute (a number, or an ISO date
and time) and kv_tokens, the tokens that would have to be in flight to serve everybody:
admitted, queued and refused (the gate's kvbudget_demand_tokens). Rows may be missing.
--backtest writes minute,alarm,probability,low,high for every row, each from the rows
before it alone; low and high bound the maximum within the horizon.
The score counts minutes below the limit, after the first day.

exit: 0; 1 an alarm holds at the last minute; 2 usage, or a file that cannot be used."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--series", required=True, metavar="FILE", help="CSV of demand, - is stdin")
    parser.add_argument("--capacity-tokens", required=True, metavar="N", help="tokens that the pool holds")
    parser.add_argument(
        "--horizon", default="30m", metavar="T", help=f"{SHORTEST_MINUTES}m to {LONGEST_MINUTES}m (default 30m)"
    )
    parser.add_argument(
        "--column", default="", metavar="NAME", help=f"the column of demand (default {_DEFAULT_COLUMN})"
    )
    parser.add_argument("--usage", action="store_true", help="the column is the share of the pool in use, 0 to 1")
    parser.add_argument("--backtest", metavar="OUT.csv", help="write what would have been said at every row")
    parser.add_argument("--json", action="store_true", help=f"one JSON document (schema {SCHEMA})")


def run(args: argparse.Namespace) -> int:
    """0, or 1 when an alarm holds at the last minute. Raises InputError for what cannot be used."""
    forecaster = Forecaster(_capacity(args.capacity_tokens), _horizon(args.horizon))
    if args.backtest and os.path.realpath(args.backtest) == os.path.realpath(args.series):
        raise BadValueError(f"--backtest {printable(args.backtest, 200)} is the series itself", fix="another file")
    series = read_demand(args.series, args.column or _DEFAULT_COLUMN)
    scale = forecaster.capacity_tokens if args.usage else 1.0
    if args.usage and not series.looks_like_usage:
        raise BadValueError(
            f"--usage: {printable(series.column, 60)} has values above 1",
            fix="divide percent by 100, or leave --usage away",
        )
    told = [
        (minute, forecaster.observe(minute, None if value is None else value * scale)) for minute, value in series.rows
    ]
    last = next(forecast for _, forecast in reversed(told) if forecast is not None)
    if args.backtest:
        write_whole(args.backtest, _backtest(series, told).encode(), "--backtest")
    document = _document(last, forecaster, series, usage=args.usage)
    with written_out():
        if args.json:
            print(json.dumps(document, allow_nan=False))
        else:
            print("\n".join(_text(document)))
    return 1 if last.alarm else 0


def _capacity(text: str) -> float:
    try:
        return any_number(text)
    except ValueError:
        return float(parse_length(text, "--capacity-tokens"))


def _horizon(text: str) -> int:
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    scale = _MINUTES.get(text[len(digits) :])
    if scale is None or not (is_digits(digits) and len(digits) <= 4):
        raise BadValueError(f"--horizon {printable(text, 40)!r} is no length of time", fix="write 30m, or 1h")
    return int(digits) * scale


def _backtest(series: DemandSeries, told: list[tuple[int, Forecast | None]]) -> str:
    lines = ["minute,alarm,probability,low,high"]
    for written, (_, forecast) in zip(series.written, told, strict=True):
        if forecast is None:  # nothing is known before the first value
            lines.append(f"{written},0,0,0,0")
        else:
            lines.append(
                f"{written},{forecast.alarm:d},{forecast.probability:.4f},{forecast.low:.0f},{forecast.high:.0f}"
            )
    return "\n".join(lines) + "\n"


def _document(last: Forecast, forecaster: Forecaster, series: DemandSeries, *, usage: bool) -> dict[str, Any]:
    coverage, truths = forecaster.coverage
    return {
        "schema": SCHEMA,
        "minute": last.minute,
        "at": _stamp(last.minute) if series.stamped else None,
        "demand_tokens": round(last.tokens),
        "capacity_tokens": round(last.capacity_tokens),
        "limit_tokens": round(last.limit_tokens),
        "horizon_minutes": last.horizon_minutes,
        "saturated": last.saturated,
        "alarm": last.alarm,
        "probability": round(last.probability, 4),
        "alarm_above": round(last.alarm_above, 4),
        "minutes_to_limit": last.minutes_to_limit,
        "limit_reached_at": _stamp(last.minute + last.minutes_to_limit) if series.stamped else None,
        "maximum_tokens": {
            "low": round(last.low),
            "expected": round(last.expected),
            "high": round(last.high),
            "nominal": NOMINAL,
            "coverage": None if coverage is None else round(coverage, 4),
            "truths": truths,
        },
        "maturity": last.maturity,
        "minutes": {"given": len(series.rows), "missing": series.missing, "filled_lately": last.filled},
        "score": {name: _figures(figures) for name, figures in forecaster.scores().items()},
        "notes": _notes(last, series, usage=usage),
    }


def _stamp(minute: int) -> str:
    return datetime.fromtimestamp(minute * 60, UTC).isoformat(timespec="minutes").replace("+00:00", "Z")


def _figures(figures: Figures) -> dict[str, Any]:
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in figures._asdict().items()}


def _notes(last: Forecast, series: DemandSeries, *, usage: bool) -> list[str]:
    notes = []
    if last.maturity == "cold":
        notes.append("under 15 minutes were seen: the interval is a guess, and so is the probability")
    elif last.maturity == "first day":
        notes.append("under a day was seen: nothing is known of the time of day yet, and nothing is scored")
    elif last.maturity == "first week":
        notes.append("under a week was seen: nothing is known of the day of the week yet")
    if usage:
        notes.append(
            "usage ends at 1 where demand does not: who queues or is refused is not in it. Once full it tells neither "
            "how far nor for how long; the gate's kvbudget_demand_tokens does"
        )
    elif series.looks_like_usage and last.capacity_tokens > 2:
        notes.append("no value is above 1: if these are shares of the pool, add --usage")
    if 2 * last.filled > last.horizon_minutes:
        notes.append("most of the last minutes are missing and were filled in: this rests on older ones")
    spacing = series.spacing_minutes()
    if spacing > 1:
        notes.append(f"rows are {spacing} minutes apart, which is too coarse: give one row a minute")
    return notes


def _text(document: dict[str, Any]) -> list[str]:
    horizon, limit = document["horizon_minutes"], f"{SATURATED:.0%} of capacity"
    maximum = document["maximum_tokens"]
    if document["saturated"]:
        head = f"at the limit now: {document['demand_tokens']:,} of {document['limit_tokens']:,} tokens ({limit})"
    else:
        head = (
            f"{'ALARM' if document['alarm'] else 'no alarm'}: {document['probability']:.0%} that {limit} is reached "
            f"within {horizon} min"
        )
    when = document["at"] or f"minute {document['minute']}"
    lines = [
        head,
        "",
        f"  demand at {when:<20} {document['demand_tokens']:>15,} tokens",
        f"  limit, {limit:<23} {document['limit_tokens']:>15,}",
        f"  highest within {horizon} min, expected {maximum['expected']:>18,}",
        f"  {maximum['nominal']:.0%} interval {maximum['low']:>22,} to {maximum['high']:>11,}",
    ]
    if document["alarm"] and not document["saturated"]:
        lines.append(f"  the limit, if reached, in about {document['minutes_to_limit']:>18} min")
    lines += ["", *_score_lines(document, horizon)]
    lines += [f"note: {note}" for note in document["notes"]]
    return lines


def _score_lines(document: dict[str, Any], horizon: int) -> list[str]:
    score, maximum = document["score"], document["maximum_tokens"]
    own = score["forecast"]
    if not own["decisions"]:
        return ["nothing is scored before the second day"]
    early = f">={horizon * 5 // 6} min"
    lines = [
        f"so far: {own['decisions']:,} decisions, {own['positives']:,} right to warn at, {own['onsets']} onsets",
        f"{'rule':<20} {'precision':>9} {'recall':>7} {'F1':>6} {'false/day':>10} {early:>9} {'lead min':>9}",
    ]
    for name, row in score.items():
        lines.append(
            f"{name:<20} {_share(row['precision']):>9} {_share(row['recall']):>7} {_share(row['f1']):>6} "
            f"{_share(row['false_episodes_per_day']):>10} {row['warned_onsets']:>6}/{row['onsets']:<2} "
            f"{'-' if row['mean_lead_minutes'] is None else format(row['mean_lead_minutes'], '.0f'):>9}"
        )
    if maximum["coverage"] is not None:
        lines.append(f"the interval held {maximum['coverage']:.1%} of {maximum['truths']:,} maxima")
    return lines


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
