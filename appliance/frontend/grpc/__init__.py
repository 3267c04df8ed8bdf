"""The gRPC edge: a front door is a port, its implementations share the codec, the handlers and the status table."""
