"""Floor 0: what a model is made of: layers by kind of cache, and the bytes of its weights, from config.json alone."""
