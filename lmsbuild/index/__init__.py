"""A package index of the wheels in a folder, as static files."""
