"""The ledger that several gates share: where it lives, and how it is asked."""
