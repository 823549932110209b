// glibc 2.38 and later send strtol, sscanf and their kin to __isoc23_* variants,
// which older systems lack. The C++ library's own headers (std::stoi) call them too.
#include_next <features.h>
#undef __GLIBC_USE_C2X_STRTOL
#define __GLIBC_USE_C2X_STRTOL 0
#undef __GLIBC_USE_C23_STRTOL
#define __GLIBC_USE_C23_STRTOL 0
