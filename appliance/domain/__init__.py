"""The values that all rooms speak in: models, tensors, requests, manifests, errors."""
