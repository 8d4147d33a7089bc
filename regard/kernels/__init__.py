"""Kernels: each answers ``refuses(problem)`` and ``run(problem)``. They never import each other."""
