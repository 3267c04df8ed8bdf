"""The engine: performs what the cores decide about requests, versions and workers, and is the only owner of
a Scheduler. It knows no protocol and no transport, and reads no clock of its own: the shell gives one."""
