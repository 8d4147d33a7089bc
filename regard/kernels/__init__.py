"""Kernels: each has ``refuses(problem)`` and ``run(problem)``. They never import each other."""
