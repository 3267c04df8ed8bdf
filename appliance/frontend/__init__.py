"""What clients talk to: gRPC, HTTP, the sockets below both, and quotas."""
