"""Model packages and model directories made from what there is: ONNX files, versions, exports of other
tools. A package is judged as the serving side judges it before it is written."""
