"""The `appliance model` commands, one module each. They change what a store holds and wants, or ask a
running appliance; making and measuring models is in `tools`."""
