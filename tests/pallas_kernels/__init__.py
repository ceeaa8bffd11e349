"""Tests of the ops. The Pallas kernels have files of their own: on a CPU they are interpreted."""

ANYWHERE = ("reference", "xla")  # implementations that run on any device
