"""The accountant for memory: which models are in it, what is paged in, evicted, loaded and unloaded, and what is
reserved for versions on their way to serving, within one budget per device.

``accountant`` is the way in: ``step(event, now_ns)`` gives ``actions``. Nothing here reads a clock or the machine.
"""
