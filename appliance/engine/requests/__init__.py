"""One request from submission to outcome: admission, dispatch, completion, and the ways it may take where
its version fails or goes. Decides neither order nor admission (``core/scheduling`` does)."""
