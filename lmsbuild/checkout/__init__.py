"""A checkout of PyTorch: patches put on it, taken off it, and made from its commits."""
