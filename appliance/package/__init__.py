"""Model packages as files: their contents, manifests, digests and signatures, read strictly and written to
the byte. Runs no model; making packages is in ``tools/packaging``."""
