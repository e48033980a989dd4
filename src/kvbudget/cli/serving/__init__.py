"""The flags of `kvbudget serve`, and the budget file beside them, as settings of a gate."""
