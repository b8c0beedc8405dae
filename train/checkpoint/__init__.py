"""Checkpoints: every rank writes its part in the background; published atomically.

    CHECKPOINTS/step-000060/                a folder or an s3:// prefix
        model/00000-of-00004.safetensors    what rank 0 of 4 wrote of the trained weights
        optimizer/...  ema/...              other groups of named tensors in the same way
        state.json                          format version, step, position of the stream, configuration

A checkpoint exists if its ``state.json`` does, which is written after all parts and removed before any of them.
"""
