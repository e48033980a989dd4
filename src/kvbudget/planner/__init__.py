"""Floor 3: from a model, an engine's flags and a GPU to the pool, its blocks and the ceiling. Pure."""
