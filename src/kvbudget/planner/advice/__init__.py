"""What to change and what it would bring: solvers, order of retreat and spending, long context, what-ifs, cost."""
