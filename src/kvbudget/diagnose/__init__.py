"""Floor 3: what is wrong, how we know, what would refute it, and what to do first; and when it will happen."""
