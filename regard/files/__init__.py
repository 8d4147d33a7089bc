"""Files: written atomically, read within bounds, checked against declared types."""
