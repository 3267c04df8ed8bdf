"""The benchmark kit: starts servers, loads them, and says which targets are met.

Nothing here imports the appliance; every server, ours included, is a separate process met over the wire.
"""
