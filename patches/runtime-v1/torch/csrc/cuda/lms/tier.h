#pragma once

// The header that c10/cuda/CUDACachingAllocator.cpp includes.

#include <torch/csrc/cuda/lms/tier/tier.h>
