"""The engine: the only owner of a Scheduler, and everything that decides which version serves."""
