"""The serving daemon: its parts, how they are put together, and how it runs from its start to its end."""
