# The CUDA toolkit and what the module links: cuBLASLt, cuDNN, NCCL.
#
#   CAIRN_CUDA=OFF    no module: it takes longer to build than all else, and most machines have no GPU
#   CAIRN_CUDA=ON     the module, and an error if something that it needs is missing
#   CAIRN_CUDA=AUTO   the module where all of it is found; not with sanitizers (preset dev)
#
# Sets CAIRN_CUDA_FOUND (the module is built) and CAIRN_CUDA_HEADERS (the headers are there: its
# host side is built against the fakes of tests/gpu/fake).
set(CAIRN_CUDA OFF CACHE STRING "Build cairn-cuda.so: OFF | ON | AUTO")
set(CAIRN_CUDA_ARCHITECTURES "80-real;90a-real;90-virtual" CACHE STRING
    "GPU architectures of the module's own kernels; the virtual one is for later GPUs")

set(CUDA_PLACES $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda /opt/cuda)
find_program(CUDA_NVCC nvcc HINTS ${CUDA_PLACES} PATH_SUFFIXES bin)
set(CUDA_MISSING "")

# dep::NAME from a header and, unless only the header is wanted, a library.
function(cairn_cuda_lib name header library)
    find_path(CUDA_${name}_INCLUDE ${header} HINTS ${CUDA_PLACES} PATH_SUFFIXES include)
    find_library(CUDA_${name}_LIBRARY ${library} HINTS ${CUDA_PLACES}
        PATH_SUFFIXES lib lib64 targets/x86_64-linux/lib)
    if(CUDA_${name}_INCLUDE AND CUDA_${name}_LIBRARY)
        add_library(dep_${name} UNKNOWN IMPORTED GLOBAL)
        set_target_properties(dep_${name} PROPERTIES
            IMPORTED_LOCATION ${CUDA_${name}_LIBRARY}
            INTERFACE_INCLUDE_DIRECTORIES ${CUDA_${name}_INCLUDE})
        add_library(dep::${name} ALIAS dep_${name})
    else()
        set(CUDA_MISSING ${CUDA_MISSING} ${library} PARENT_SCOPE)
    endif()
endfunction()

# Static: the module can be loaded where there is no driver, and says so.
cairn_cuda_lib(cudart cuda_runtime_api.h libcudart_static.a)
cairn_cuda_lib(cublaslt cublasLt.h cublasLt)
cairn_cuda_lib(cudnn cudnn.h cudnn)
cairn_cuda_lib(nccl nccl.h nccl)

set(CAIRN_CUDA_HEADERS OFF)
if(CUDA_cudart_INCLUDE AND CUDA_cublaslt_INCLUDE AND CUDA_cudnn_INCLUDE AND CUDA_nccl_INCLUDE)
    set(CAIRN_CUDA_HEADERS ON)
    add_library(dep_cuda_headers INTERFACE)
    add_library(dep::cuda_headers ALIAS dep_cuda_headers)
    target_include_directories(dep_cuda_headers SYSTEM INTERFACE ${CUDA_cudart_INCLUDE}
        ${CUDA_cublaslt_INCLUDE} ${CUDA_cudnn_INCLUDE} ${CUDA_nccl_INCLUDE})
endif()

set(CAIRN_CUDA_FOUND OFF)
if(NOT CUDA_NVCC)
    list(APPEND CUDA_MISSING nvcc)
endif()
if(CAIRN_CUDA STREQUAL "ON" AND CUDA_MISSING)
    message(FATAL_ERROR "CAIRN_CUDA=ON, but not found: ${CUDA_MISSING}")
endif()
if(CAIRN_CUDA STREQUAL "ON" OR (CAIRN_CUDA STREQUAL "AUTO" AND NOT CUDA_MISSING AND NOT SANITIZE))
    set(CAIRN_CUDA_FOUND ON)
    set(CMAKE_CUDA_COMPILER ${CUDA_NVCC})
    set(CMAKE_CUDA_ARCHITECTURES ${CAIRN_CUDA_ARCHITECTURES})
    set(CMAKE_CUDA_STANDARD 17)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    if(CCACHE)
        set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
    endif()
    enable_language(CUDA)
    # What libcudart_static.a asks of the system.
    add_library(cuda_system INTERFACE IMPORTED GLOBAL)
    set_target_properties(cuda_system PROPERTIES INTERFACE_LINK_LIBRARIES "rt;dl;Threads::Threads")
endif()
message(STATUS "CUDA module: ${CAIRN_CUDA_FOUND} (headers: ${CAIRN_CUDA_HEADERS})")
