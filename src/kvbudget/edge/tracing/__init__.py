"""OpenTelemetry traces of requests: which are recorded, what their spans say, and how they reach a collector."""
