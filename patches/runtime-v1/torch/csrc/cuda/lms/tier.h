#pragma once

// What c10/cuda/CUDACachingAllocator.cpp includes.

#include <torch/csrc/cuda/lms/tier/tier.h>
