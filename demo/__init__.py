"""A fleet on one machine, to look at: a controller, three boxes behind a thin link that flaps, load at each of them,
two good releases and a bad one (``make demo``)."""
