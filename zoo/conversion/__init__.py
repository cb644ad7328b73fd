"""Checkpoints of other projects made releases, with no code of theirs run; releases made ONNX files.

The room is not called `convert`: importing a package of that name would hide the function `zoo.convert`.
"""
