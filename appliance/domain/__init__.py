"""The values that all rooms speak in: models, tensors, requests, manifests, errors. Values and rules on
them alone; no I/O, and nothing of any other room is imported."""
