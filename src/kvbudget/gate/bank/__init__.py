"""One pool under several gates: a bank lends each of them a slice, out of which it promises at memory speed."""
