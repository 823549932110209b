// The names that ATen's headers use, without cuBLAS itself.
#pragma once

struct cublasContext;
using cublasHandle_t = cublasContext*;
enum cublasStatus_t { CUBLAS_STATUS_SUCCESS = 0 };
