"""A process and its kernel: the calls that Python does not know, what ends a process, how it yields to others, what it
takes of memory. For whatever process of ours; knows of no worker and no model."""
