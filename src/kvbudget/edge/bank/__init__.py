"""Where the bank of a shared pool is kept: in this process, or in a Valkey or Redis that several gates share."""
