"""Which versions share a worker process, whose packed form is built, and what a worker's death means. Pure."""
