"""The HTTP edge: the v2 REST protocol, metrics, status for machines and a status page for people."""
