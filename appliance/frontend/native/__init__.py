"""The native front end: our server in Rust listens for gRPC and HTTP, and serves by itself what it has templates of."""
