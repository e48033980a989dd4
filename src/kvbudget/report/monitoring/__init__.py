"""What watches the KV cache: Grafana dashboards, Prometheus rules with their tests, and a stack to run them on."""
