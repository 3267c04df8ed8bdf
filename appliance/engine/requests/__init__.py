"""One request from submission to outcome, and the turn that drives the scheduler."""
