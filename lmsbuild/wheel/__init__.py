"""LMS for a wheel, or for an installed torch: read, patch, compile, write and verify it."""
