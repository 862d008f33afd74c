# Whether GPU kernels are built (QUANTMILL_HAS_CUDA), and for which devices.

set(QUANTMILL_HAS_CUDA OFF)
if(NOT QUANTMILL_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(CMAKE_CUDA_COMPILER nvcc HINTS /usr/local/cuda/bin)
    if(NOT CMAKE_CUDA_COMPILER)
      unset(CMAKE_CUDA_COMPILER CACHE)
    endif()
  endif()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    # Ampere, Hopper and Blackwell, and code that later ones translate.
    set(CMAKE_CUDA_ARCHITECTURES "80-real;90-real;100-real;120" CACHE STRING "Devices that kernels are compiled for")
  endif()
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(QUANTMILL_HAS_CUDA ON)
    # The program opens libnccl when it runs: a build needs no more than the header.
    find_path(QUANTMILL_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
    find_library(QUANTMILL_NCCL_LIBRARY NAMES libnccl.so.2 nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
  elseif(QUANTMILL_CUDA STREQUAL "ON")
    message(FATAL_ERROR "QUANTMILL_CUDA is ON, but there is no nvcc: install the CUDA toolkit, name its nvcc with "
                        "CMAKE_CUDA_COMPILER, or leave QUANTMILL_CUDA at auto")
  endif()
endif()
if(QUANTMILL_HAS_CUDA)
  message(STATUS "CUDA ${CMAKE_CUDA_COMPILER_VERSION}, devices ${CMAKE_CUDA_ARCHITECTURES}")
else()
  message(STATUS "Without CUDA: GPU kernels run emulated only")
endif()

# quantmill_cuda_sources(MODULE WITH WITHOUT): of two files of a module with the same symbols, the one that this build can
# compile.
function(quantmill_cuda_sources MODULE WITH WITHOUT)
  get_target_property(sources quantmill_${MODULE} SOURCES)
  list(REMOVE_ITEM sources ${WITH} ${WITHOUT})
  if(QUANTMILL_HAS_CUDA)
    list(APPEND sources ${WITH})
    target_link_libraries(quantmill_${MODULE} PUBLIC CUDA::cudart_static)
  else()
    list(APPEND sources ${WITHOUT})
  endif()
  set_target_properties(quantmill_${MODULE} PROPERTIES SOURCES "${sources}")
endfunction()

# quantmill_cuda_resources(SOURCE FLAGS): what ptxas says of each kernel's registers, stack and spills on one device, in the
# file QUANTMILL_CUDA_RESOURCES; tests/kernels/registers.py reads it. If SOURCE doesn't compile, the library's own
# compilation says why.
set(QUANTMILL_CUDA_RESOURCES ${PROJECT_BINARY_DIR}/cuda_resources.txt)
function(quantmill_cuda_resources SOURCE FLAGS)
  separate_arguments(optimization UNIX_COMMAND "${CMAKE_CUDA_FLAGS_RELEASE}")
  add_custom_command(
    OUTPUT ${QUANTMILL_CUDA_RESOURCES}
    COMMAND ${CMAKE_CUDA_COMPILER} ${FLAGS} ${optimization} -arch=sm_90 -cubin -Xptxas=-v -I${PROJECT_SOURCE_DIR}
            -I${PROJECT_SOURCE_DIR}/src -MD -MF ${QUANTMILL_CUDA_RESOURCES}.d -MT ${QUANTMILL_CUDA_RESOURCES}
            -o ${QUANTMILL_CUDA_RESOURCES}.cubin ${SOURCE} 2> ${QUANTMILL_CUDA_RESOURCES}
    DEPENDS ${SOURCE}
    DEPFILE ${QUANTMILL_CUDA_RESOURCES}.d
    COMMENT "Registers and spills of GPU kernels"
    COMMAND_EXPAND_LISTS VERBATIM)
  add_custom_target(quantmill_cuda_resources ALL DEPENDS ${QUANTMILL_CUDA_RESOURCES})
endfunction()
