// The names that ATen's headers use, without cuSPARSE itself.
#pragma once

struct cusparseContext;
using cusparseHandle_t = cusparseContext*;
enum cusparseStatus_t { CUSPARSE_STATUS_SUCCESS = 0 };
