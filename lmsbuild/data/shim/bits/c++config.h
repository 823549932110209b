// std::condition_variable, std::timed_mutex and std::shared_timed_mutex call the
// pthread_*_clock* functions of glibc 2.30 when the C++ library was configured on it.
#include_next <bits/c++config.h>
#undef _GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT
#undef _GLIBCXX_USE_PTHREAD_MUTEX_CLOCKLOCK
#undef _GLIBCXX_USE_PTHREAD_RWLOCK_CLOCKLOCK
