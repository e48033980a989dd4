"""The HTTP surface of the embedded engine."""
