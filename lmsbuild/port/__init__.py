"""Make a new tag from an old one: hooks, registry entry, and changes of the interfaces."""
