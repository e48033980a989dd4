"""`kvbudget key`: a new API key, and the table of kvbudget.toml that makes the gate take it."""

import argparse
import json

from kvbudget.errors import BadValueError

EPILOG = """examples:
  kvbudget key team-a
      a key of tenant team-a; the table goes into kvbudget.toml, the key to the team, and kill -HUP makes it known
  kvbudget key nightly --tenant team-a --most-urgent 10
      a second key of the same tenant, that is never more urgent than priority 10
  kvbudget key edge-proxy --any-tenant --most-urgent -100
      for a proxy of your own, which names tenant and priority in headers

exit: 0 good, 2 wrong usage
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument(
        "name", metavar="NAME", help="what logs call this key; the tenant, unless --tenant says another"
    )
    parser.add_argument("--tenant", metavar="T", help="whose requests they are (default: NAME)")
    parser.add_argument(
        "--most-urgent", type=int, default=0, metavar="P", help="smallest x-kvbudget-priority that it may ask for (0)"
    )
    parser.add_argument("--any-tenant", action="store_true", help="requests may name any tenant in x-kvbudget-tenant")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(args: argparse.Namespace) -> int:
    """Print a key once; only its digest is ever kept."""
    from kvbudget.edge.request.keys import new_key
    from kvbudget.planner.budget.schema import is_name

    tenant = args.tenant or args.name
    for flag, value in (("NAME", args.name), ("--tenant", tenant)):
        if not is_name(value):
            raise BadValueError(f"{flag} {value[:40]!r} is no name", fix="use 1 to 64 letters, digits, '.', '_' or '-'")
    if not -100 <= args.most_urgent <= 100:
        raise BadValueError(f"--most-urgent {args.most_urgent}: not from -100 to 100", fix="smaller is more urgent")
    key, digest = new_key()
    table: dict[str, object] = {"sha256": digest, "tenant": tenant}
    if args.most_urgent:
        table["most_urgent"] = args.most_urgent
    if args.any_tenant:
        table["any_tenant"] = True
    if args.json:
        print(json.dumps({"key": key, "name": args.name, **table}))
        return 0
    lines = [f"{name} = {json.dumps(value)}" for name, value in table.items()]
    print(f"key, shown this once: {key}\n\nfor kvbudget.toml:\n")
    print("\n".join([f"[gate.keys.{json.dumps(args.name)}]", *lines]))
    return 0
