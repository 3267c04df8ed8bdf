"""What the daemon has done for its store beside serving, in processes of their own."""
