"""Images of the whole machine: what a release says of itself, what is on this machine, how one replaces the other."""
