"""What engines say of themselves when they start: log text and /metrics, read into one form. Pure."""
