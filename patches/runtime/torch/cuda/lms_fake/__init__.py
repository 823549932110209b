r"""Recordings of programs whose tensors are fake, for Large Model Support.

What ``torch.cuda.lms.record_fake()`` and ``lmsbuild trace`` write: the same events as
those of a recording, without a GPU and without the memory of the model. This package
imports nothing of ``torch.cuda.lms``, because lmsbuild uses it with any PyTorch.
"""

# As torch.cuda.lms, these files run on every Python that a supported PyTorch runs on. Only what is
# imported when a recording starts needs a PyTorch that has fake tensors.
