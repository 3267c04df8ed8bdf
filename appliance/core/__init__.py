"""The decisions: pure state machines that step on events and return actions, without a clock or a system."""
