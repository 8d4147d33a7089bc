"""A call of attention: what is given is checked, lowered, planned and run."""
