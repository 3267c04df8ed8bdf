"""What the native front end may do without asking: request templates, leases of lanes, and the accounts of
what it did by itself. Decides no lease (``core/scheduling/leases`` does) and no meaning of a request."""
