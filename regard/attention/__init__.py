"""A call of attention: its arguments are checked, lowered, planned and run."""
