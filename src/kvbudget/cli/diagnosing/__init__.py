"""The parts of `kvbudget diagnose`: what is read, what a planner expects of each action, and the live screen."""
