"""Tiny random transformers models, their true float64 forward and their checkpoints: what the tests compare with.

configs        named tiny Qwen3.5 configurations that reach every branch of the architecture
true_float64   the patch that makes transformers compute in float64 throughout, and the spy that proves it did
twins          random models with a voice in every branch, and the record of one forward
checkpoints    the forms in which such a model is found on disk
fixtures       the same as pytest fixtures
"""
