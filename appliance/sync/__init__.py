"""The agent: observes the box, plans one step towards what is wanted, does it, reports. A process of its own that
imports no runtime, no front end and no engine; serving goes on without it."""
