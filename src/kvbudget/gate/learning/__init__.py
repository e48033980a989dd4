"""The `learned` policy: how long answers get, what the batch will hold by that, and with how much caution."""
