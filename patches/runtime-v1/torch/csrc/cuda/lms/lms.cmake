# Included by c10/cuda/CMakeLists.txt: the runtime is part of libc10_cuda.
option(USE_LMS "Large Model Support" ON)
if(USE_LMS)
  file(GLOB LMS_SRCS ${CMAKE_CURRENT_LIST_DIR}/*.cpp)
  # The rest of this release is C++11; GCC 7 is the first that reads the runtime.
  set_source_files_properties(${LMS_SRCS} PROPERTIES COMPILE_FLAGS -std=c++17)
  list(APPEND C10_CUDA_SRCS ${LMS_SRCS})
else()
  add_definitions(-DC10_CUDA_NO_LMS)
endif()
