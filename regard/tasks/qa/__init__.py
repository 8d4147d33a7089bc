"""Question answering: trained by `train`, used by `answerer`."""
