"""Worker processes: the memory they share with the daemon, the way to them, and what runs inside them."""
