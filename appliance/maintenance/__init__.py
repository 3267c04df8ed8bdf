"""What the daemon does beside serving: for its store, in processes of their own, and for its own memory."""
