"""The decisions: pure state machines that step on events and return actions. Nothing here reads a clock, a
file or the machine, or calls whoever drives it."""
