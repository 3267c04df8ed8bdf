"""The `appliance model` commands."""
