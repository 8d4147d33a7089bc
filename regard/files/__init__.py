"""Files: written whole or not at all, read within bounds, checked against declared types."""
