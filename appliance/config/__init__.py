"""What an operator may set: one module for each subject, with its sections of the configuration file, the tree of
them all, and how a file becomes one. Plain values with their bounds and meanings; imports nothing of the components
that use them."""
