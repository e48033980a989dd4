"""Where what engines, gates and Prometheus servers tell is fetched from, and brought into `engines.window`."""
