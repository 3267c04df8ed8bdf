"""Model directories on disk to values: what can be served from them, and everything that is wrong with the
rest. Reads without any runtime, bounded, and follows no link out of the model's directory."""
