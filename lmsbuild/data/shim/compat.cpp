// What the headers of newer compilers call and an older libstdc++ does not export.
// All of it is compiled into the runtime library and, by its version script, stays
// inside: a newer libstdc++ at run time is not disturbed. The functions are weak, because a
// compiler that links libstdc++ statically brings its own.

#include <cxxabi.h>

#include <cstdlib>
#include <exception>
#include <new>
#include <sstream>
#include <string>

// Called where an exception leaves a noexcept function since GCC 14 (CXXABI_1.3.15).
extern "C" [[noreturn, gnu::weak]] void __cxa_call_terminate(void* exception) noexcept {
  if (exception != nullptr) {
    // So that the terminate handler can say which exception it was.
    abi::__cxa_begin_catch(exception);
  }
  std::terminate();
}

namespace std {

// Called by allocators since GCC 11 (GLIBCXX_3.4.29). The base class is thrown, because
// bad_array_new_length itself came with GCC 4.9 (CXXABI_1.3.8).
[[noreturn, gnu::weak]] void __throw_bad_array_new_length() {
  throw bad_alloc();
}

// Called by assertions in headers since GCC 12 (GLIBCXX_3.4.30).
[[noreturn, gnu::weak]] void
__glibcxx_assert_fail(const char*, int, const char*, const char*) noexcept {
  abort();
}

// Constructors without arguments since GCC 9 (GLIBCXX_3.4.26).
template basic_ostringstream<char>::basic_ostringstream();
template basic_istringstream<char>::basic_istringstream();
template basic_stringstream<char>::basic_stringstream();

#if _GLIBCXX_USE_CXX11_ABI
#if _GLIBCXX_RELEASE >= 13
// Outlined from basic_string's _M_replace in GCC 13 (GLIBCXX_3.4.31).
template void basic_string<char>::_M_replace_cold(
    char*,
    size_type,
    const char*,
    const size_type,
    const size_type);
#endif
#if _GLIBCXX_RELEASE >= 15
// The constructors' common part since GCC 15 (GLIBCXX_3.4.34).
template void basic_string<char>::_M_construct<true>(const char*, size_type);
template void basic_string<char>::_M_construct<false>(const char*, size_type);
#endif
#else
// From a string_view (GLIBCXX_3.4.26).
template basic_string<char>::basic_string(basic_string<char>::__sv_wrapper, const allocator<char>&);
#endif

} // namespace std
