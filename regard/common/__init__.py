"""Shared by all packages: modules that can be reset, ragged arrays, hashes, threads, start-up, moved modules."""
