"""What is not translated comes back as it is."""
