"""Open-loop load from a trace against a real endpoint, and what came of it."""
