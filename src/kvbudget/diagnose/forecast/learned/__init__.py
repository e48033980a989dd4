"""What was learned of made series, before any of a real one was seen; written by bench/forecast/train.py."""
