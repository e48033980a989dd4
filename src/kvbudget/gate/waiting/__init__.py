"""Who cannot go now: whether it may wait, where, whose turn it is, and who may go before others."""
