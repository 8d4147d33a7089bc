"""Triton kernels, and what they share."""
