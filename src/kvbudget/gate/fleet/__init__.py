"""Several instances: which one takes a request, who is healthy, and what each still has room for. No clock, no I/O."""
