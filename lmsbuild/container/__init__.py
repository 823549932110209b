"""PyTorch built from source in a container, by cibuildwheel."""
