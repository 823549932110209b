# Included by torch/CMakeLists.txt: libtorch_lms.so, which torch.cuda.lms loads.
include(CMakeDependentOption)
# With static libraries, the runtime would contain a second copy of them, with separate globals.
# Upstream's split build has other targets.
cmake_dependent_option(
  USE_LMS "Build Large Model Support" ON
  "USE_CUDA;LINUX;BUILD_SHARED_LIBS;NOT BUILD_LIBTORCHLESS" OFF)
message(STATUS "Large Model Support (USE_LMS): ${USE_LMS}")
if(USE_LMS)
  file(GLOB_RECURSE LMS_SRCS ${CMAKE_CURRENT_LIST_DIR}/*.cpp)
  add_library(torch_lms SHARED ${LMS_SRCS})
  # One translation unit per folder, because most of the time is spent on PyTorch's headers.
  foreach(LMS_SRC ${LMS_SRCS})
    get_filename_component(LMS_LAYER ${LMS_SRC} DIRECTORY)
    set_source_files_properties(${LMS_SRC} PROPERTIES UNITY_GROUP ${LMS_LAYER})
  endforeach()
  set_target_properties(torch_lms PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  target_include_directories(torch_lms PRIVATE
    ${TORCH_ROOT}
    ${TORCH_ROOT}/aten/src
    ${TORCH_ROOT}/torch/csrc/api/include
    ${CMAKE_BINARY_DIR}
    ${CMAKE_BINARY_DIR}/aten/src)
  set_target_properties(torch_lms PROPERTIES
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    LINK_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/exports.map)
  target_link_libraries(torch_lms PRIVATE
    c10_cuda
    torch_cpu
    torch::cudart
    ${CMAKE_DL_LIBS}
    -Wl,--version-script,${CMAKE_CURRENT_LIST_DIR}/exports.map
    # Ignore undefined symbols of torch's own libraries.
    -Wl,-z,defs,--allow-shlib-undefined)
  install(TARGETS torch_lms DESTINATION "${TORCH_INSTALL_LIB_DIR}")
endif()
