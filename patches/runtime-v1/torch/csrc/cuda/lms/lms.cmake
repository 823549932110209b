# Included by c10/cuda/CMakeLists.txt: the runtime is part of libc10_cuda.
if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
  option(USE_LMS "Large Model Support" ON)
endif()
if(USE_LMS)
  # The rest of this release is C++11; the runtime needs GCC 7 or later.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 7)
    message(FATAL_ERROR "Large Model Support needs GCC 7 or later; USE_LMS=0 leaves it out")
  endif()
  file(GLOB_RECURSE LMS_SRCS ${CMAKE_CURRENT_LIST_DIR}/*.cpp)
  set_source_files_properties(
    ${LMS_SRCS} PROPERTIES COMPILE_FLAGS "-std=c++17 -include torch/csrc/cuda/lms/compat/macros.h")
  list(APPEND C10_CUDA_SRCS ${LMS_SRCS})
  link_libraries(${CMAKE_DL_LIBS}) # the target does not exist yet
else()
  add_definitions(-DC10_CUDA_NO_LMS)
endif()
