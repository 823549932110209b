// The name that ATen's headers use, without cuRAND itself.
#pragma once

struct curandStateMtgp32;
