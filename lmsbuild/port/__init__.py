"""A new tag from an old one: hooks merged, the registry entry, what changed in the interfaces."""
