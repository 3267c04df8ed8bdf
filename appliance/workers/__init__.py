"""Worker processes: the memory they share with the daemon, the messages between them, and what both sides
know. Decides nothing about requests or versions."""
