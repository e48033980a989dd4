"""Floor 3: the sans-I/O admission state machine, handle(event, now_ns) -> commands."""
