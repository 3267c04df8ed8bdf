"""The gRPC front end: codec, statuses, handlers, streams."""
