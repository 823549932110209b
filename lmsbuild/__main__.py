"""``python -m lmsbuild``."""

from lmsbuild.cli.main import main

if __name__ == "__main__":
    main(prog_name="lmsbuild")
