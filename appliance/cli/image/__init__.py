"""The commands ``appliance image ...``: what this machine runs, replaced, led back, erased and proven."""
