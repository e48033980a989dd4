"""Commands. The floor that puts the parts together, and the only one that reads the environment."""
