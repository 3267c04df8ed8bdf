"""The `appliance bundle` commands, one module each: what box and controller say to one another, carried by hand."""
