"""The C++ toolchain: the runtime compiled and linked, for this system and for older ones."""
