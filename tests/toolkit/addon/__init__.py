"""Tests of lmsbuild/addon and of the package that it writes."""
