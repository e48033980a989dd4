"""What engines write to their logs again and again while they serve, brought into `engines.window`. Pure."""
