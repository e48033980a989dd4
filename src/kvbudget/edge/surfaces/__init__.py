"""The APIs that requests come by: one module for each, one row each in `table.py`."""
