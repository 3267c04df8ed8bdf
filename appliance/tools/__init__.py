"""What a version answers and costs, and variants of it: tried in a process of its own, for people."""
