r"""Reports of what Large Model Support does in an iteration: text, pictures, pages, traces.

``torch.cuda.lms.plot()`` writes them from a running program, and ``lmsbuild report``
from a file. This package imports nothing of torch, because lmsbuild uses it without.
"""

# As torch.cuda.lms, these files run on every Python that a supported PyTorch runs on. PyTorch's
# builds install only Python files from here: therefore style.py and script.py are Python, too.
