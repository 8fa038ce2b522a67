"""The model server: `POST /predict`, the Open Inference Protocol v2, and metrics, for a model of PyTorch or ONNX."""
