"""How much each client may ask: the configuration as the numbers of the native front end, which keeps the
accounts."""
