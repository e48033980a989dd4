"""What tenants and classes owe one another: their shares and limits, and what stays free for others."""
