"""`kvbudget reload`: a running gate takes over what its kvbudget.toml says now, all of it or nothing."""

import argparse
import http.client
import json
import os
import urllib.error
import urllib.request

from kvbudget.errors import BadValueError, printable

EPILOG = """examples:
  kvbudget reload
      the gate whose admin port is 127.0.0.1:8801; the same as kill -HUP, with an answer
  KVBUDGET_ADMIN_TOKEN=... kvbudget reload --admin http://gate-1:8801

exit: 0 taken over, 1 refused (the old settings stay) or a change needs a restart, 2 no gate there
"""
_TIMEOUT_S = 10.0
_MOST_BYTES = 1 << 20

_NO_GATE: dict[str, object] = {"error": {"message": "the answer is none of a gate's admin port"}}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--admin", default="http://127.0.0.1:8801", metavar="URL", help="its admin port (%(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(args: argparse.Namespace) -> int:
    """Ask, and print what became of it."""
    status, answer = _posted(args.admin.rstrip("/") + "/v1/reload", os.environ.get("KVBUDGET_ADMIN_TOKEN"))
    if args.json:
        print(json.dumps(answer))
    elif status != 200:
        print(f"not taken over, the old settings stay: {printable(_said(answer), 2000)}")
    else:
        print(f"changed: {_named(answer, 'changed') or 'nothing'}")
        if later := _named(answer, "needs_restart"):
            print(f"needs a restart, the old ones stay: {later}")
    return 0 if status == 200 and not answer.get("needs_restart") else 1


def _posted(url: str, token: str | None) -> tuple[int, dict[str, object]]:
    if not url.startswith(("http://", "https://")):
        raise BadValueError(f"--admin {url[:100]!r} is no address", fix="write http://HOST:PORT")
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(url, b"{}", headers)  # noqa: S310 - the scheme was looked at
    # The gate stands in one's own network: no proxy of the environment is asked.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_TIMEOUT_S) as answer:
            return answer.status, _document(answer.read(_MOST_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            return error.code, _document(error.read(_MOST_BYTES))
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = printable(str(getattr(error, "reason", error)), 100)
        raise BadValueError(f"{url[:100]}: no gate answers: {reason}", fix="give its admin port by --admin") from None


def _named(answer: dict[str, object], member: str) -> str:
    names = answer.get(member)
    return ", ".join(map(str, names)) if isinstance(names, list) else ""


def _said(answer: dict[str, object]) -> str:
    """Why it was refused, and what to do."""
    error = answer.get("error")
    if not isinstance(error, dict):
        return str(answer)
    return "; ".join(str(error[name]) for name in ("message", "fix") if error.get(name))


def _document(data: bytes) -> dict[str, object]:
    try:
        document = json.loads(data)
    except ValueError:
        document = None
    return document if isinstance(document, dict) else _NO_GATE
