"""The daemon's side: the pool of workers, their supervision, and what they still owe."""
