"""Envoy as the data plane: the gate as an external processor (ext_proc), and as an endpoint picker."""
