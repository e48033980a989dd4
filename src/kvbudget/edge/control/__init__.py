"""The control plane, on the admin port: who may do what there, and what it tells people and machines."""
