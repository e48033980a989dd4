"""Floor 4: a paged engine on a virtual clock, built on the same pool arithmetic as the gate."""
