"""Floor 2: the only place that names an engine: its flags, pool rule and metric names, each with the version read."""
