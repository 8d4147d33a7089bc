"""What experiments and tests are made of: a toy grammar with gold alignments."""
