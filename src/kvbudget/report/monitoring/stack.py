"""Decides how gate, engine, Prometheus and Grafana are wired together where there is Docker, and how all is scraped.

The gate's metrics carry a label `instance` of their own: its name of an engine. Prometheus would rename that to
exported_instance, so the scrape has honor_labels, and says in `gate` which process told.
"""

from typing import Any, Final

from kvbudget.report.monitoring.rule_files import RULES_FILE, yaml_text

# What the stack runs; the rules and the queries are checked with Prometheus 2.42, the dashboards with Grafana 11.6.
PROMETHEUS_IMAGE: Final = "prom/prometheus:v3.5.0"
GRAFANA_IMAGE: Final = "grafana/grafana:12.1.0"
VLLM_IMAGE: Final = "vllm/vllm-openai:v0.32.0"
_SCRAPE_INTERVAL: Final = "5s"
_ALL_ADDRESSES: Final = "0.0.0.0"  # noqa: S104 - inside of the stack's own network
SOURCE: Final = "KVBUDGET_SOURCE"
CONTAINERFILE: Final = "docs/examples/deploy/Containerfile"  # of a checkout
MADE: Final = "# Made by `kvbudget dashboards`.\n"


def scrape_configs(gates: list[str], engines: dict[str, Any]) -> list[dict[str, Any]]:
    """The two jobs. `gates`: admin ports, HOST:PORT. `engines`: how to find them (static_configs, ...)."""
    return [
        {
            "job_name": "kvbudget",
            "honor_labels": True,
            "relabel_configs": [{"source_labels": ["__address__"], "target_label": "gate"}],
            "static_configs": [{"targets": gates}],
        },
        {"job_name": "engine", **engines},
    ]


def prometheus_text() -> str:
    """prometheus.yml of the stack. Engines are looked up by name, so one that was not started is not missed."""
    engines = {
        "dns_sd_configs": [{"names": ["engine", "vllm"], "type": "A", "port": 8000, "refresh_interval": "10s"}],
        "relabel_configs": [
            {"source_labels": ["__meta_dns_name"], "target_label": "instance", "replacement": "$1:8000"}
        ],
    }
    document = {
        "global": {"scrape_interval": _SCRAPE_INTERVAL, "evaluation_interval": "15s"},
        "rule_files": [RULES_FILE],
        "scrape_configs": scrape_configs(["gate:8801"], engines),
    }
    head = (
        f"{MADE}# With KVBUDGET_ADMIN_TOKEN set, job kvbudget needs `authorization: {{credentials_file: ...}}`.\n"
        "# Elsewhere: keep honor_labels and the label `gate`; list your own targets.\n"
    )
    return head + yaml_text(document)


def compose_text(checkout: str) -> str:
    """compose.yaml. The engine has no weights and needs no card; the profile `vllm` brings a real one.

    `checkout`: where the image is built from, as seen from the file; "" where none is known, and Compose asks for it.
    """
    context = f":-{checkout}" if checkout else ":?set it to a checkout of kvbudget, the image is built from it"
    kvbudget = {
        "image": "kvbudget",
        "build": {"context": f"${{{SOURCE}{context}}}", "dockerfile": CONTAINERFILE},
    }
    gpu = {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    services = {
        "gate": {
            **kvbudget,
            "command": ["--backend", "${KVBUDGET_BACKEND:-http://engine:8000}"],
            "ports": ["127.0.0.1:8800:8800", "127.0.0.1:8801:8801"],
            "volumes": ["gate-state:/state"],
        },
        "engine": {
            **kvbudget,
            "entrypoint": ["/opt/kvbudget/bin/kvbudget", "engine"],
            "command": ["--host", _ALL_ADDRESSES, "--num-blocks", "2049", "--step-cost", "0.02"],
        },
        "vllm": {
            "image": VLLM_IMAGE,
            "profiles": ["vllm"],
            "command": ["--model", "${MODEL:-Qwen/Qwen2.5-7B-Instruct}", "--port", "8000"],
            "ipc": "host",
            "volumes": ["hub:/root/.cache/huggingface"],
            "deploy": {"resources": {"reservations": {"devices": [gpu]}}},
        },
        "prometheus": {
            "image": PROMETHEUS_IMAGE,
            "volumes": [
                "./prometheus.yml:/etc/prometheus/prometheus.yml:ro",
                f"./{RULES_FILE}:/etc/prometheus/{RULES_FILE}:ro",
                "prometheus-data:/prometheus",
            ],
            "ports": ["127.0.0.1:9090:9090"],
        },
        "grafana": {
            "image": GRAFANA_IMAGE,
            "environment": {"GF_AUTH_ANONYMOUS_ENABLED": "true", "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer"},
            "volumes": [
                "./provisioning:/etc/grafana/provisioning:ro",
                "./dashboards:/var/lib/grafana/dashboards:ro",
            ],
            "ports": ["127.0.0.1:3000:3000"],
            "depends_on": ["prometheus"],
        },
    }
    head = (
        f"{MADE}#   docker compose up -d --build            # gate on :8800, Grafana on http://127.0.0.1:3000\n"
        "#   KVBUDGET_BACKEND=http://vllm:8000 docker compose --profile vllm up -d --build    # before a real vLLM\n"
        f"# The image is built from a checkout of kvbudget; {SOURCE} says where another one is.\n"
    )
    volumes: dict[str, dict[str, str]] = {"gate-state": {}, "hub": {}, "prometheus-data": {}}
    return head + yaml_text({"services": services, "volumes": volumes})


def datasource_text() -> str:
    """Grafana's way to Prometheus. The interval makes $__rate_interval four scrapes long, as it has to be."""
    source = {
        "name": "Prometheus",
        "type": "prometheus",
        "access": "proxy",
        "url": "http://prometheus:9090",
        "isDefault": True,
        "jsonData": {"timeInterval": _SCRAPE_INTERVAL},
    }
    return MADE + yaml_text({"apiVersion": 1, "datasources": [source]})


def provider_text() -> str:
    """Grafana's way to the dashboards."""
    provider = {
        "name": "kvbudget",
        "folder": "kvbudget",
        "type": "file",
        "options": {"path": "/var/lib/grafana/dashboards"},
    }
    return MADE + yaml_text({"apiVersion": 1, "providers": [provider]})
