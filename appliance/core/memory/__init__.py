"""Which models are in memory: what is loaded, whose weights are evicted, what is paged in."""
