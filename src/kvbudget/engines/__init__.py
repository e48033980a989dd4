"""Floor 2: the only place that names an engine: flags, pool rule, metric names and quirks, each with its version."""
