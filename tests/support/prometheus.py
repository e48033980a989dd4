"""Decides how the tests get a real Prometheus and its promtool, what they ask of it, and what a query is made of."""

import json
import math
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kvbudget.report.monitoring.panel import Dashboard, Kind

ROOT = Path(__file__).resolve().parents[2]
START_S = 60.0
STOP_S = 20.0
_LISTENS = re.compile(r'msg="Listening on" address=(\S+)')
# A metric's name and, if they follow, its matchers; our prefixes only.
_SELECTOR = re.compile(r'(?<![\w:])((?:vllm:|kvbudget_|sglang:|up\b)[\w:]*)\s*(?:\{((?:[^}"]|"(?:[^"\\]|\\.)*")*)\})?')
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"(?:[^"\\]|\\.)*"')
_GROUPING = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")


def tool(name: str) -> Path:
    """`prometheus` or `promtool`. Not having it fails the test: a check that is skipped in silence is none."""
    folder = Path(os.environ.get("KVBUDGET_PROMETHEUS") or ROOT / ".cache" / "prometheus")
    if not (folder / name).exists():
        pytest.fail(
            f"no {name} in {folder}; run scripts/install_prometheus.sh (make test does), or let KVBUDGET_PROMETHEUS"
            " name a folder that holds prometheus and promtool"
        )
    return folder / name


def promtool(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs it in `folder`, where it may write as well."""
    command = [str(tool("promtool")), *arguments]
    environment = {**os.environ, "TMPDIR": str(folder), "GOGC": "800"}  # short-lived: a third of its time is garbage
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=380, check=False
    )


class Series(NamedTuple):
    """One metric in a query, and the labels that it is chosen by."""

    name: str
    labels: frozenset[str]


def series_in(promql: str) -> list[Series]:
    """Every metric that a query asks for, recorded ones left out (their names begin with what they are kept by)."""
    return [Series(match[1], frozenset(_MATCHER.findall(match[2] or ""))) for match in _SELECTOR.finditer(promql)]


def grouping_in(promql: str) -> set[str]:
    """Labels that a query groups or joins by."""
    return {label.strip() for group in _GROUPING.findall(promql) for label in group.split(",") if label.strip()}


class Prometheus:
    """A running one. `ask` gives (labels, value) of an instant query."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, promql: str, at_s: float | None = None) -> list[tuple[dict[str, str], float]]:
        """Raises AssertionError with Prometheus's own words when it does not take the query."""
        asked = {"query": promql} | ({} if at_s is None else {"time": str(at_s)})
        request = urllib.request.Request(f"{self.url}/api/v1/query", urllib.parse.urlencode(asked).encode())
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                found = json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{promql}: {error.read().decode()[:500]}") from None
        if found["resultType"] == "scalar":
            return [({}, float(found["result"][1]))]
        return [(one["metric"], float(one["value"][1])) for one in found["result"]]

    def wait_for(self, condition: str, within_s: float = 60.0) -> None:
        """Until a query with a comparison in it has a result."""
        deadline = time.monotonic() + within_s
        while not self.ask(condition):
            if time.monotonic() > deadline:
                pytest.fail(f"not within {within_s:.0f} s: {condition}")
            time.sleep(0.1)

    def rules(self) -> list[dict[str, Any]]:
        """All that are loaded, as /api/v1/rules tells of them, each computed at least once."""
        with urllib.request.urlopen(f"{self.url}/api/v1/rules", timeout=20) as answer:
            groups = json.load(answer)["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def empty(self, promql: str, at_s: float | None = None) -> bool:
        """Nothing to draw: no series, or no number in any of them."""
        return all(math.isnan(value) for _, value in self.ask(promql, at_s))


def bare(promql: str) -> str:
    """The query without the 0 that stands in for nothing: a name that is wrong must not pass for an idle engine."""
    return promql.removesuffix(" or vector(0)")


def filled_in(promql: str, rate_interval: str, variables: Mapping[str, str] | None = None) -> str:
    """The query as Grafana sends it, with everything chosen."""
    text = promql.replace("$__rate_interval", rate_interval)
    for name, value in (variables or {}).items():
        text = text.replace(f"${name}", value)
    return re.sub(r"\$[a-z]+", ".*", text)


def empty_panels(
    prometheus: Prometheus,
    board: Dashboard,
    rate_interval: str,
    *,
    at_s: float | None = None,
    absent: Collection[str] = (),
    truly_zero: Collection[str] = (),
) -> list[str]:
    """Panels of which a question has no answer; of a panel of states, all of them. `absent`: metrics that need not be
    there; `truly_zero`: those whose stand-in for nothing is the truth."""
    empty = []
    for panel in board.panels:
        asked = []
        for query in panel.queries:
            names = {series.name for series in series_in(query.promql)}
            if names.isdisjoint(absent):
                promql = bare(query.promql) if names.isdisjoint(truly_zero) else query.promql
                asked.append(filled_in(promql, rate_interval))
        silent = [promql for promql in asked if prometheus.empty(promql, at_s)]
        if silent and (panel.kind is not Kind.STATES or silent == asked):
            empty += [f"{panel.title}: {promql}" for promql in silent]
    return empty


@contextmanager
def running_prometheus(folder: Path, config: Mapping[str, Any]) -> Iterator[Prometheus]:
    """A Prometheus with its data and log in `folder`, on a free port; it has ended when the block ends."""
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    log = folder / "prometheus.log"
    command = [
        str(tool("prometheus")),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--storage.tsdb.retention.time=100y",  # recordings are old
        "--web.listen-address=127.0.0.1:0",
        "--log.format=logfmt",
    ]
    with log.open("wb") as written:
        process = subprocess.Popen(
            command, stdout=written, stderr=written, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        yield Prometheus(_ready(process, log))
    finally:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        process.kill()
        process.wait(STOP_S)


def _ready(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"prometheus ended with code {process.returncode}\n{log.read_text()[-3000:]}")
        if found := _LISTENS.search(log.read_text(errors="replace")):
            url = f"http://{found[1]}"
            with suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
                if answer.status == 200:
                    return url
        time.sleep(0.05)
    pytest.fail(f"prometheus was not ready within {START_S:.0f} s\n{log.read_text()[-3000:]}")
