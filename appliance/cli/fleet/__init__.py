"""The `appliance fleet` commands: what an operator of many boxes does from his desk."""
