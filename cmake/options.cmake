# Compiler settings of all our own targets. Never -march=native, never -ffast-math: bits must not
# depend on the machine that compiled them.
add_library(cairn_options INTERFACE)
target_include_directories(cairn_options INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_definitions(cairn_options INTERFACE _GNU_SOURCE CAIRN_VERSION="${PROJECT_VERSION}")
target_compile_options(cairn_options INTERFACE
    -ffp-contract=off -fno-math-errno -fno-trapping-math -fno-omit-frame-pointer
    $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes
    -Wmissing-prototypes -Wvla -Wswitch-enum -Wundef>
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow>)
target_link_libraries(cairn_options INTERFACE Threads::Threads)
if(CAIRN_FAULTS)
    target_compile_definitions(cairn_options INTERFACE CAIRN_FAULTS=1)
endif()
# What strangers' bytes reach is compiled with the compiler's guards; sanitizers bring their own. The
# loops of kernels/cpu/loops do without (kernels/CMakeLists.txt). tests/tidy/guards.py looks at the programs.
if(NOT SANITIZE)
    target_compile_options(cairn_options INTERFACE
        -fstack-protector-strong -fstack-clash-protection
        $<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2>)
    target_link_options(cairn_options INTERFACE LINKER:-z,relro LINKER:-z,now)
endif()
if(SANITIZE)
    # -O1 -g1 (after any -O3 of a target): half the time to compile, and backtraces keep their lines.
    target_compile_options(cairn_options INTERFACE
        -fsanitize=${SANITIZE} -fno-sanitize-recover=all -O1 -g1)
    target_link_options(cairn_options INTERFACE -fsanitize=${SANITIZE})
endif()

# cairn_folder(NAME SOURCES ... HEADERS ... DEPS ...): the static library of one folder.
function(cairn_folder name)
    cmake_parse_arguments(ARG "" "" "SOURCES;HEADERS;DEPS" ${ARGN})
    add_library(${name} STATIC ${ARG_SOURCES})
    target_sources(${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}
        FILES ${ARG_HEADERS})
    target_link_libraries(${name} PUBLIC cairn_options ${ARG_DEPS})
endfunction()
