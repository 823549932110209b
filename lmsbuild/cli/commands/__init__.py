"""One module per command; each defines ``command``, a click command named like the module."""
