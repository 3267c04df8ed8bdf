"""The runtime for TensorRT: simulated, and with what of NVIDIA's runs without a GPU."""
