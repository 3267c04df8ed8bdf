"""What the daemon does beside serving: scrubbing its store, in a process of its own, and keeping the
interpreter's collector out of the requests' way. Never on a request's way."""
