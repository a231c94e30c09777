"""The op table: one entry for each ONNX op that can become part of a fused program."""
