"""What a refused client is told: why, and when to come back, which is a promise."""
