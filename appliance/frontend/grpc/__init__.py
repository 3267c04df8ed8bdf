"""The gRPC protocol, whatever carries it: codec, handlers, streams, and one table of statuses; and its
server over the gRPC library, the only file that knows it."""
