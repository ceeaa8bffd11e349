"""Tests that need a Hopper GPU: `JAX_PLATFORMS=cuda pytest -m gpu tests/device`."""
