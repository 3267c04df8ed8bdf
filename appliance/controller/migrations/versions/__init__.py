"""Each step from one form of the database to the next, in their order; a step that was released never changes."""
