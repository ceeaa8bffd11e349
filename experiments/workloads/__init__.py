"""Workloads of the paper, read from files that a user has."""
