"""Floor 0: a model's config.json as layers by kind, and the bytes of its weights."""
