"""What the native front end may do without asking: leases and request templates."""
