"""Command lines of engines: argv and environment in, what they mean for the planner out. Nothing is executed."""
