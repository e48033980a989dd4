"""Cards, and the memory that is neither weights nor pool."""
