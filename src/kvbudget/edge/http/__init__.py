"""The data plane: HTTP/1.1 server, pooled upstream client and the relay between them."""
