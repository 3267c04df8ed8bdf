"""The jail of workers: what the kernel keeps a process from that has loaded a hostile model."""
