"""Floor 4: plans and findings as text for people."""
