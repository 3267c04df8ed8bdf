"""Sources of models: what is wanted on this box, read from where somebody put it, and read again when it changes."""
