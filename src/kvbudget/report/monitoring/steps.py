"""Decides what who has just got the files of `kvbudget dashboards` is told to do with them: the README beside them."""

from textwrap import indent
from typing import Final

from kvbudget.report.monitoring.gate_panels import GATE_BOARD
from kvbudget.report.monitoring.rule_files import RULES_FILE
from kvbudget.report.monitoring.sglang_panels import SGLANG_BOARD
from kvbudget.report.monitoring.stack import SOURCE
from kvbudget.report.monitoring.vllm_panels import VLLM_BOARD

README: Final = "README.md"
_JOB: Final = """\
```yaml
- job_name: kvbudget
  honor_labels: true            # keeps the label `instance`: the gate's name of an engine
  relabel_configs:
  - source_labels: [__address__]
    target_label: gate          # which gate told it
  static_configs:
  - targets: ["127.0.0.1:8801"]
```
"""


def steps(folder: str = "") -> tuple[str, str, str]:
    """Scrape, rules, dashboards: one sentence each. `folder` is put before the names of the files."""
    base = f"{folder.rstrip('/')}/" if folder else ""
    return (
        f"scrape: copy the jobs of {base}prometheus.yml into your scrape_configs, with your addresses; the gate's admin"
        " port needs honor_labels and the label `gate` as there",
        f"rules: name {base}{RULES_FILE} under rule_files of your prometheus.yml, and reload Prometheus",
        f"dashboards: in Grafana, Dashboards, New, Import: {base}dashboards/{GATE_BOARD.uid}.json for the gate; without"
        f" a gate {VLLM_BOARD.uid}.json or {SGLANG_BOARD.uid}.json beside it",
    )


def readme_text() -> str:
    """README.md of the folder; it needs nothing outside of it."""
    scrape, rules, boards = (text[0].upper() + text[1:] for text in steps())
    return f"""\
# Monitoring of kvbudget and its engines

Made by `kvbudget dashboards`, which replaces its own files and none that you changed.

## With your own Prometheus and Grafana

1. {scrape}:

{indent(_JOB, "   ")}
2. {rules}. Before:
   `promtool check rules {RULES_FILE}` and `promtool test rules rules.test.yaml rules.10m.test.yaml`.
3. {boards}. Grafana 11 or newer; no plugin.

Engines are scraped as they are: call their job `engine`, `vllm` or `sglang`, and `KvbudgetEngineDown` watches them.
Where the gate has KVBUDGET_ADMIN_TOKEN, its job needs `authorization: {{credentials_file: ...}}`. Where your copies of
the alerts' pages are, `kvbudget dashboards --runbooks URL` writes into each alert.

## With Docker

`compose.yaml` starts gate, an engine without weights, Prometheus and Grafana (http://127.0.0.1:3000), on
this machine alone:

    docker compose up -d --build

The gate's image is built from a checkout of kvbudget. Where compose.yaml does not know of one, it asks for it:

    {SOURCE}=/path/to/kvbudget docker compose up -d --build

Before a real vLLM:

    KVBUDGET_BACKEND=http://vllm:8000 MODEL=Qwen/Qwen2.5-7B-Instruct docker compose --profile vllm up -d --build
"""
