"""A C++ extension that reads addresses: of resident tensors, and of ones that are paged out."""

import shutil

import pytest
import torch
from bits import lms

SOURCE = r"""
#include <ATen/cuda/CUDAContext.h>
#include <cuda_runtime_api.h>
#include <torch/extension.h>
#include <torch/library.h>

// Copies past every operator, on the current stream.
void copy_bytes(const at::Tensor& from, const at::Tensor& to) {
  const void* const source = from.const_data_ptr();
  void* const target = to.mutable_data_ptr();
  C10_CUDA_CHECK(cudaMemcpyAsync(
      target, source, from.nbytes(), cudaMemcpyDeviceToDevice, at::cuda::getCurrentCUDAStream()));
}

// As an operator, which allocates after it has read the address.
at::Tensor copied(const at::Tensor& from) {
  const void* const source = from.const_data_ptr();
  at::Tensor to = at::empty_like(from);
  C10_CUDA_CHECK(cudaMemcpyAsync(
      to.mutable_data_ptr(),
      source,
      from.nbytes(),
      cudaMemcpyDeviceToDevice,
      at::cuda::getCurrentCUDAStream()));
  return to;
}

TORCH_LIBRARY(lms_gpu_extension, library) {
  library.def("copied(Tensor x) -> Tensor", copied);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("copy_bytes", copy_bytes);
}
"""
ELEMENTS = 1 << 20


@pytest.fixture(scope="module")
def extension(tmp_path_factory):
    from torch.utils import cpp_extension

    if cpp_extension.CUDA_HOME is None or not shutil.which("g++"):
        pytest.skip("g++ and the CUDA toolkit's headers are needed to build an extension")
    if not cpp_extension.is_ninja_available():
        pytest.skip("ninja is needed to build an extension")
    return cpp_extension.load_inline(
        "lms_gpu_extension",
        cpp_sources=[SOURCE],
        extra_cflags=["-O0"],
        with_cuda=True,
        no_implicit_headers=True,
        build_directory=str(tmp_path_factory.mktemp("extension")),
    )


def values():
    return torch.arange(ELEMENTS, dtype=torch.float32) % 1021


def test_past_the_dispatcher(extension):
    with lms(limit=0):
        x, y = values().cuda(), torch.zeros(ELEMENTS, device="cuda")
        x.sum(), y.sum()
        extension.copy_bytes(x, y)  # resident
        assert torch.equal(y.cpu(), values())
        torch.cuda.reclaim_inactive()
        with pytest.raises(RuntimeError, match=r"paged this storage out .* torch\.cuda\.lms\."):
            extension.copy_bytes(x, y)
        y.zero_()
        torch.cuda.reclaim_inactive()
        with torch.cuda.lms.resident(x, y):
            extension.copy_bytes(x, y)
        torch.cuda.reclaim_inactive()
        assert not torch.cuda.lms.is_resident(y)
        assert torch.equal(y.cpu(), values())


def test_operator(extension):
    with lms(limit=0, stress=True):
        x = values().cuda()
        results = [torch.ops.lms_gpu_extension.copied(x) for _ in range(3)]
        torch.cuda.reclaim_inactive()
        assert not torch.cuda.lms.is_resident(x)
        for result in results:
            assert torch.equal(result.cpu(), values())
