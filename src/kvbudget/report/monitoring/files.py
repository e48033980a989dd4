"""Decides which files `kvbudget dashboards` writes, and what is in each."""

from typing import Final

from kvbudget.report.monitoring import stack
from kvbudget.report.monitoring.gate_alerts import ROOM
from kvbudget.report.monitoring.gate_panels import GATE_BOARD
from kvbudget.report.monitoring.grafana import grafana_json
from kvbudget.report.monitoring.rule_files import RULES_FILE, rules_text, tests_texts
from kvbudget.report.monitoring.service_alerts import SERVICE
from kvbudget.report.monitoring.sglang_alerts import SGLANG_RULES
from kvbudget.report.monitoring.sglang_panels import SGLANG_BOARD
from kvbudget.report.monitoring.steps import README, readme_text
from kvbudget.report.monitoring.vllm_alerts import VLLM_RULES
from kvbudget.report.monitoring.vllm_panels import VLLM_BOARD

DASHBOARDS: Final = (GATE_BOARD, VLLM_BOARD, SGLANG_BOARD)
GROUPS: Final = (ROOM, SERVICE, VLLM_RULES, SGLANG_RULES)
RUNBOOKS: Final = "docs/runbooks"  # of a checkout; whoever serves them elsewhere says where


def monitoring_files(runbooks: str = RUNBOOKS, checkout: str = "") -> dict[str, str]:
    """Text of every file by its path below the folder. `runbooks`: URL or path under which the pages of alerts are.

    `checkout`: where a checkout of kvbudget lies, absolute or from the folder; "" where there is none.
    """
    base = runbooks.rstrip("/")
    return {
        **{f"dashboards/{dashboard.uid}.json": grafana_json(dashboard) for dashboard in DASHBOARDS},
        RULES_FILE: rules_text(GROUPS, base),
        **tests_texts(GROUPS, base),
        "prometheus.yml": stack.prometheus_text(),
        "provisioning/datasources/prometheus.yaml": stack.datasource_text(),
        "provisioning/dashboards/kvbudget.yaml": stack.provider_text(),
        "compose.yaml": stack.compose_text(checkout),
        README: readme_text(),
    }
