"""What becomes of versions on their way to serving, and after: decided here, done elsewhere. Pure."""
