"""The worker's side: the zygote, loading, running."""
