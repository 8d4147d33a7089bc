"""Other libraries' models, in and out."""
