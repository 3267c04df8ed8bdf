"""What pip installs, in environments of its own."""
