"""Model directories on disk to values: what can be served from them, and what is wrong with the rest."""
