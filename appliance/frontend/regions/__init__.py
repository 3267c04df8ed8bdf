"""Regions of shared memory that clients on this machine registered: Triton's system shared memory extension.

A region belongs to the user who registered it, and so does its file below /dev/shm: others can neither use nor see nor
unregister it. Who a client is the kernel says (SO_PEERCRED of a Unix socket), never the client. Whoever has a file can
also shrink it, lock it and have its end take long, at any time: so nothing of one is touched or waited for on the event
loop's thread but what the kernel reads without a lock. What this process and its workers share has no name below
/dev/shm and cannot be registered.
"""
