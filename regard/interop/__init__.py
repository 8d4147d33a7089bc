"""Import and export of other libraries' models."""
