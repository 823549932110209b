"""A checkout of PyTorch: apply and remove patches, and make patches from its commits."""
