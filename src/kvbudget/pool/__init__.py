"""Floor 1: the one accounting of KV blocks: groups, demand, ledger, and a slow reference to check them."""
