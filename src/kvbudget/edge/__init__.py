"""Floor 5: everything that touches the world: sockets, files, clocks."""
