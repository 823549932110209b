// std::shared_ptr asks glibc 2.32's __libc_single_threaded whether it may count
// without atomics. "No" is always a right answer and needs no symbol.
#pragma once
static constexpr char lms_libc_single_threaded = 0;
#define __libc_single_threaded lms_libc_single_threaded
