# Whether GPU kernels are built (QUANTMILL_HAS_CUDA), and for which devices.

# quantmill_find_nvcc(VERSION): sets CMAKE_CUDA_COMPILER to an nvcc that knows C++20, and VERSION to its toolkit's ("13.0"), or
# VERSION to "" and WHY to what is missing.
function(quantmill_find_nvcc VERSION WHY)
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS /usr/local/cuda/bin)
  if(NOT CMAKE_CUDA_COMPILER)
    unset(CMAKE_CUDA_COMPILER CACHE)
    set(${VERSION} "" PARENT_SCOPE)
    set(${WHY} "there is no nvcc: install the CUDA toolkit, or name its nvcc with CMAKE_CUDA_COMPILER" PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --version OUTPUT_VARIABLE said ERROR_QUIET)
  string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" release "${said}")
  set(found "${CMAKE_MATCH_1}")
  if(NOT found OR found VERSION_LESS 12.0)
    set(${WHY} "${CMAKE_CUDA_COMPILER} is of CUDA \"${found}\", and C++20 needs 12.0 or later" PARENT_SCOPE)
    set(found "")
    unset(CMAKE_CUDA_COMPILER CACHE)
  endif()
  set(${VERSION} "${found}" PARENT_SCOPE)
endfunction()

set(QUANTMILL_HAS_CUDA OFF)
set(why "nothing else was looked for")
if(NOT QUANTMILL_CUDA STREQUAL "OFF")
  quantmill_find_nvcc(toolkit why)
  if(toolkit)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      # Ampere and Hopper, Blackwell where the toolkit knows it, and code that later ones translate.
      if(toolkit VERSION_LESS 12.8)
        set(devices "80-real;90")
      else()
        set(devices "80-real;90-real;100-real;120")
      endif()
      set(CMAKE_CUDA_ARCHITECTURES ${devices} CACHE STRING "Devices that kernels are compiled for")
    endif()
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(QUANTMILL_HAS_CUDA ON)
    # The program opens libnccl when it runs: a build needs no more than the header.
    find_path(QUANTMILL_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
    find_library(QUANTMILL_NCCL_LIBRARY NAMES libnccl.so.2 nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
  elseif(QUANTMILL_CUDA STREQUAL "ON")
    message(FATAL_ERROR "QUANTMILL_CUDA is ON, but ${why}; or leave QUANTMILL_CUDA at auto")
  endif()
endif()
if(QUANTMILL_HAS_CUDA)
  message(STATUS "CUDA ${CMAKE_CUDA_COMPILER_VERSION}, devices ${CMAKE_CUDA_ARCHITECTURES}")
else()
  message(STATUS "Without CUDA, GPU kernels run emulated only: QUANTMILL_CUDA is ${QUANTMILL_CUDA}; ${why}")
endif()

# quantmill_cuda_sources(MODULE WITH WITHOUT): of two files of a module with the same symbols, the one that this build can
# compile.
function(quantmill_cuda_sources MODULE WITH WITHOUT)
  get_target_property(sources quantmill_${MODULE} SOURCES)
  list(REMOVE_ITEM sources ${WITH} ${WITHOUT})
  if(QUANTMILL_HAS_CUDA)
    list(APPEND sources ${WITH})
    target_link_libraries(quantmill_${MODULE} PRIVATE CUDA::cudart_static)
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
