# Builds with CUDA. The runtime is linked statically and the libraries (cuBLASLt, cuDNN, NCCL) are loaded when they are
# first needed, so that the program starts on machines without any of them.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(WITAN_NVCC nvcc PATHS /usr/local/cuda/bin $ENV{CUDA_HOME}/bin)
  if(WITAN_NVCC)
    set(CMAKE_CUDA_COMPILER ${WITAN_NVCC})
  endif()
endif()
# 90a: Hopper's own instructions (wgmma, bulk copies). 80: Ampere, and as PTX every later GPU.
set(WITAN_CUDA_ARCHITECTURES "90a-real;80" CACHE STRING "GPU architectures to build for")
set(CMAKE_CUDA_ARCHITECTURES ${WITAN_CUDA_ARCHITECTURES})
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
# For the host's half of a source, which launches: device code is optimised all the same.
set(CMAKE_CUDA_FLAGS_RELEASE "-O1")
enable_language(CUDA)
# CMake 3.25 does not know how nvcc is told.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA_STANDARD 20)
find_package(CUDAToolkit REQUIRED)
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

add_library(witan_cuda_flags INTERFACE)
target_compile_definitions(witan_cuda_flags INTERFACE WITAN_CUDA=1)
if(WITAN_CUDA_ARCHITECTURES MATCHES "90a")
  target_compile_definitions(witan_cuda_flags INTERFACE WITAN_CUDA_HOPPER=1)
endif()
target_compile_options(witan_cuda_flags
                       INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-lineinfo>)
option(WITAN_CUDA_OPTIMISE "Optimise device code; OFF halves the build's time, and is for what no GPU will run" ON)
if(NOT WITAN_CUDA_OPTIMISE)
  target_compile_options(witan_cuda_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:--Ofast-compile=max>)
endif()
target_link_libraries(witan_cuda_flags INTERFACE CUDA::cudart_static ${CMAKE_DL_LIBS})
# C++ sources include CUDA's headers without its warnings.
target_include_directories(witan_cuda_flags SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})

# Headers of cuDNN's frontend, and of cuDNN and NCCL where the toolkit has none; for the few sources that need them.
set(WITAN_CUDA_HEADERS ${PROJECT_SOURCE_DIR}/build/cuda-headers/include)
execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/cuda_headers.sh ${CUDAToolkit_INCLUDE_DIRS}
                OUTPUT_QUIET RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "The headers of cuDNN's frontend are missing and could not be downloaded. Run "
                      "scripts/cuda_headers.sh where there is a network; it fills ${WITAN_CUDA_HEADERS}.")
endif()
add_library(witan_cuda_headers INTERFACE)
target_include_directories(witan_cuda_headers SYSTEM INTERFACE ${WITAN_CUDA_HEADERS})
