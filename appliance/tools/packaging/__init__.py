"""Model packages and model directories made from what there is: ONNX files, versions, exports of other tools."""
