"""Request lengths from files: traces, usage logs, engine logs, histograms."""
