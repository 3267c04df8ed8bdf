"""The worker's side: the zygote, loading, running. Never imported by the daemon; what it is told comes over
its lane alone."""
