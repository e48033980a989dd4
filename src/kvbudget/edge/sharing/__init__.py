"""What a gate shares with others: blocks of the pool, and what it has learned of lengths."""
