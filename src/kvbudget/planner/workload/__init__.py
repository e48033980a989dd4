"""The lengths of real requests against the pool: ceilings, chances, stability, sharing."""
