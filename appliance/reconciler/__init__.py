"""What is wanted on this box, from its source and from an operator's hand, told to the engine: nothing of requests."""
