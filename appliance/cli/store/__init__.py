"""The commands below ``appliance store``, one module each."""
