"""What is known of each version that is served: its route, its layout, its records on the disk. Starts and
stops nothing."""
