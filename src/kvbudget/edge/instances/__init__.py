"""The engines behind the gate, as it lives with them: what they are, whether they are up, what they hold."""
