"""Edge inference appliance: answers Open Inference Protocol clients from models that run in worker processes."""

__version__ = "0.1.0"
