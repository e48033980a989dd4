"""Loads from files: which requests arrive when, and how long they are."""
