"""When demand will reach what the pool holds: one value a minute in, a probability and an interval out."""
