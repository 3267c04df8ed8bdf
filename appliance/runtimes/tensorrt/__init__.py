"""ONNX models through TensorRT: engines that this box builds for its own GPU, and seals. Imported where enabled."""
