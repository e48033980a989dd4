"""The reviewed budget on disk: reading, writing, what an engine reported, and what of it a running gate takes over."""
