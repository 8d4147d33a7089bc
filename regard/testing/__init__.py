"""Data for experiments and tests: a toy grammar with gold alignments."""
