"""The budget as a reviewed file, and what moved away from it."""
