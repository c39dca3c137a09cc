"""An adapted model as ONNX: a folder that runs with onnxruntime alone, and agrees with PyTorch."""
