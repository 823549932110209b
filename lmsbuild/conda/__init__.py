"""Conda packages of LMS wheels, and channels to install them from."""
