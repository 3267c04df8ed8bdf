"""The commands of the tools, below `appliance model`: arguments, progress, tables. What they do is in the
other rooms of ``tools``."""
