"""What `kvbudget simulate` is made of: flags, loads, parallel runs, and the table."""
