"""What ``appliance diagnose`` does: a list of parts, how each is taken and bounded, what may not leave, one archive."""
