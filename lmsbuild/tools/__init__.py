"""Tools that know nothing of PyTorch: git, pip, archives, ELF files, files written whole."""
