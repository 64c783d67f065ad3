"""Trained policies: what they choose by, how they are saved and loaded."""

OPSET = 17  # of ONNX, where a config names none; here, because configs are read before numpy is imported
