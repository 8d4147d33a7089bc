"""Summarization: trained by `train`, used by `summarizer`."""
