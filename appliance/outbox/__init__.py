"""Records that leave the box when the link allows it: appended by one process, read and acknowledged by another, kept
across every crash, bounded, and with a record for whatever had to go."""
