"""What clients talk to: gRPC, HTTP, the sockets below both, and quotas. Turns bytes into checked plans and
outcomes into bytes; decides nothing about when a request runs or which version serves."""
