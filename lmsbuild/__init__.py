"""lmsbuild: PyTorch with Large Model Support, built from what upstream publishes."""

import os

__version__ = "0.1.0"

# GitPython fails on import when there is no git. With this it fails when git is first used,
# where lmsbuild can say so in one line, and commands that need no git work without it.
os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
