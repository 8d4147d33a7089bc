"""Translation: trained by `train`, used by `translator`."""
