"""Which versions share a worker process, and what a worker's death means. Pure; it starts and ends nothing."""
