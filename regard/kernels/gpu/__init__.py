"""Triton kernels, and their shared code."""
