# cuDNN's attention in the module: where the frontend's headers are (PyPI: nvidia-cudnn-frontend;
# CUDNN_FRONTEND names their folder), and NVRTC, which they link.
#
#   CAIRN_SDPA=own     the own kernels compute attention
#   CAIRN_SDPA=cudnn   … cuDNN where the table of sdpa_cudnn.cpp says so
set(CAIRN_SDPA own CACHE STRING "Who computes attention in half precision on GPUs: own | cudnn")
find_path(CUDNN_FRONTEND_INCLUDE cudnn_frontend.h HINTS ENV CUDNN_FRONTEND PATH_SUFFIXES include)
find_library(CUDA_nvrtc_LIBRARY nvrtc HINTS ${CUDA_PLACES}
    PATH_SUFFIXES lib lib64 targets/x86_64-linux/lib)
if(CUDNN_FRONTEND_INCLUDE AND CUDA_nvrtc_LIBRARY)
    add_library(dep_nvrtc UNKNOWN IMPORTED GLOBAL)
    set_target_properties(dep_nvrtc PROPERTIES IMPORTED_LOCATION ${CUDA_nvrtc_LIBRARY})
    add_library(sdpa_cudnn OBJECT library/sdpa_cudnn.cpp)
    target_link_libraries(sdpa_cudnn PRIVATE cairn_options dep::cuda_headers)
    target_include_directories(sdpa_cudnn SYSTEM PRIVATE ${CUDNN_FRONTEND_INCLUDE})
    target_compile_definitions(sdpa_cudnn PRIVATE CUDNN_FRONTEND_SKIP_JSON_LIB
        $<$<STREQUAL:${CAIRN_SDPA},cudnn>:CAIRN_SDPA_CUDNN>)
    target_compile_options(sdpa_cudnn PRIVATE -fvisibility=hidden)
    set_target_properties(sdpa_cudnn PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_sources(cairn-cuda PRIVATE $<TARGET_OBJECTS:sdpa_cudnn>)
    target_link_libraries(cairn-cuda PRIVATE dep_nvrtc)
    # The test's: the same object with what it links.
    add_library(sdpa_cudnn_library INTERFACE)
    target_sources(sdpa_cudnn_library INTERFACE $<TARGET_OBJECTS:sdpa_cudnn>)
    target_compile_definitions(sdpa_cudnn_library INTERFACE
        $<$<STREQUAL:${CAIRN_SDPA},cudnn>:CAIRN_SDPA_CUDNN>)
    target_link_libraries(sdpa_cudnn_library INTERFACE dep::cudnn dep_nvrtc dep::cudart cuda_system)
elseif(CAIRN_SDPA STREQUAL "cudnn")
    message(FATAL_ERROR "CAIRN_SDPA=cudnn, but cudnn_frontend.h or libnvrtc was not found")
endif()
