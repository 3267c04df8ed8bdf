"""What a version answers and costs, and golden sets: models are loaded and run in a process of its own."""
