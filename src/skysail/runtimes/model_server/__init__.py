"""Model server for PyTorch and ONNX: `POST /predict`, the Open Inference Protocol v2, and metrics."""
