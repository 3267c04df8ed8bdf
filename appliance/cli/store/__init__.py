"""The `appliance store` commands, one module each: they look after a store's disk. They change no version
that is wanted."""
