"""One request's way through the gate: read, counted, admitted or turned away, relayed, ended exactly once."""
