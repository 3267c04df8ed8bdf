"""The edge inference appliance: answers Open Inference Protocol clients from models that run in worker
processes. ARCHITECTURE.md says which room is for what, and `tests/architecture` holds which may import
which."""

__version__ = "0.1.0"
