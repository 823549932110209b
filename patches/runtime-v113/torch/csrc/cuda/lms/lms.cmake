# Included by torch/CMakeLists.txt: libtorch_lms.so, which torch.cuda.lms loads, and
# libtorch_lms_seam.so, which torch/_lms_seam.py loads before PyTorch's own libraries.
include(CMakeDependentOption)
# With static libraries, the runtime would contain a second copy of them, with separate globals.
cmake_dependent_option(
  USE_LMS "Build Large Model Support" ON
  "USE_CUDA;LINUX;BUILD_SHARED_LIBS" OFF)
message(STATUS "Large Model Support (USE_LMS): ${USE_LMS}")
if(USE_LMS)
  file(GLOB_RECURSE LMS_SRCS ${CMAKE_CURRENT_LIST_DIR}/*.cpp)
  list(FILTER LMS_SRCS EXCLUDE REGEX "/seam/")
  file(GLOB LMS_SEAM_SRCS ${CMAKE_CURRENT_LIST_DIR}/seam/*.cpp)
  add_library(torch_lms SHARED ${LMS_SRCS})
  # One translation unit per folder, because most of the time is spent on PyTorch's headers.
  foreach(LMS_SRC ${LMS_SRCS})
    get_filename_component(LMS_LAYER ${LMS_SRC} DIRECTORY)
    set_source_files_properties(${LMS_SRC} PROPERTIES UNITY_GROUP ${LMS_LAYER})
  endforeach()
  set_target_properties(torch_lms PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  add_library(torch_lms_seam SHARED ${LMS_SEAM_SRCS})
  foreach(LMS_TARGET torch_lms torch_lms_seam)
    target_include_directories(${LMS_TARGET} PRIVATE
      ${TORCH_ROOT}
      ${TORCH_ROOT}/aten/src
      ${TORCH_ROOT}/torch/csrc/api/include
      ${CMAKE_BINARY_DIR}
      ${CMAKE_BINARY_DIR}/aten/src)
    # The rest of this release is C++14.
    set_target_properties(${LMS_TARGET} PROPERTIES
      CXX_STANDARD 17
      CXX_VISIBILITY_PRESET hidden
      VISIBILITY_INLINES_HIDDEN ON)
    install(TARGETS ${LMS_TARGET} DESTINATION "${TORCH_INSTALL_LIB_DIR}")
  endforeach()
  set_target_properties(torch_lms PROPERTIES LINK_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/exports.map)
  target_link_libraries(torch_lms PRIVATE
    c10_cuda
    torch_cpu
    torch::cudart
    ${CMAKE_DL_LIBS}
    -Wl,--version-script,${CMAKE_CURRENT_LIST_DIR}/exports.map
    # Ignore undefined symbols of torch's own libraries.
    -Wl,-z,defs,--allow-shlib-undefined)
  # The seam uses only their headers, because it is loaded before them.
  foreach(LMS_TARGET c10_cuda c10 torch_cpu torch::cudart)
    target_include_directories(torch_lms_seam PRIVATE
      $<TARGET_PROPERTY:${LMS_TARGET},INTERFACE_INCLUDE_DIRECTORIES>)
  endforeach()
  target_link_libraries(torch_lms_seam PRIVATE
    ${CMAKE_DL_LIBS}
    -Wl,--version-script,${CMAKE_CURRENT_LIST_DIR}/seam/exports.map
    -Wl,-z,defs)
endif()
