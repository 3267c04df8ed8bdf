"""The gRPC door: codec, statuses, handlers, streams."""
