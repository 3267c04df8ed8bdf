"""Commands of the agent: run it, enrol the box, see what is wanted and what it waits for."""
