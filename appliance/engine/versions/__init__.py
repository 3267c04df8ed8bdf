"""What is known of each version that is served: its route, its state, its records on the disk."""
