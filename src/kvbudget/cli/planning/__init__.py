"""The parts of `kvbudget plan`: its flags, what they mean together, and what is printed and written."""
