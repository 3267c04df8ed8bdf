"""The gRPC edge: a front end is a port, its implementations share the codec, the handlers and the status table."""
