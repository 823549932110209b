"""LMS on a wheel, or on an installed torch: read, patched, compiled, written, verified."""
