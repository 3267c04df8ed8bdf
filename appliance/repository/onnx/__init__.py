"""What an ONNX file holds, read from the file itself, and what of it may be served: no runtime, no onnx package."""
