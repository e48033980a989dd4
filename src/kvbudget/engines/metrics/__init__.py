"""What engines, and our gate, export as metrics over a stretch of time, brought into `engines.window`. Pure."""
