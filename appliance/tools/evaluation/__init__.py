"""What a version answers and costs, and golden sets. Models are loaded and run in a process of their own,
never in the command's."""
