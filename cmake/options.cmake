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
