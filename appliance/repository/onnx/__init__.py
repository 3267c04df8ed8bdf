"""What an ONNX file holds, read from the file itself, and what of it may be served (docs/FIREWALL.md). Uses
neither a runtime nor the onnx package."""
