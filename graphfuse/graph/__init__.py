"""The graph of ONNX nodes, held by ``onnx_ir``: loading, saving, constant folding, symbolic facts."""
