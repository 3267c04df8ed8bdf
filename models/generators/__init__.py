"""Builders of small ONNX models, one noun per module; `catalogue` names them all."""
