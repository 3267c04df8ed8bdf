"""The commands ``appliance image ...``: what this machine runs, and how that is replaced, led back, erased and proven."""
