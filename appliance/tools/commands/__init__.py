"""The commands of the tools, below ``appliance model``: arguments, progress, tables."""
