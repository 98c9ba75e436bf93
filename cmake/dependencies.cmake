# Outside libraries, each as one target dep::NAME (docs/architecture.md says what each is for).
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)

function(cairn_pkg name module)
    pkg_check_modules(${name} REQUIRED IMPORTED_TARGET ${module})
    add_library(dep_${name} INTERFACE)
    add_library(dep::${name} ALIAS dep_${name})
    target_link_libraries(dep_${name} INTERFACE PkgConfig::${name})
endfunction()

# Libraries that ship no pkg-config file.
function(cairn_lib name header library)
    find_path(${name}_INCLUDE ${header} REQUIRED)
    find_library(${name}_LIBRARY ${library} REQUIRED)
    add_library(dep_${name} INTERFACE)
    add_library(dep::${name} ALIAS dep_${name})
    add_library(dep_${name}_import UNKNOWN IMPORTED GLOBAL)
    set_target_properties(dep_${name}_import PROPERTIES
        IMPORTED_LOCATION ${${name}_LIBRARY}
        INTERFACE_INCLUDE_DIRECTORIES ${${name}_INCLUDE})
    target_link_libraries(dep_${name} INTERFACE dep_${name}_import)
endfunction()

cairn_pkg(grpc grpc)
cairn_pkg(gpr gpr)
cairn_pkg(protobuf_c libprotobuf-c)
cairn_pkg(zstd libzstd)
cairn_pkg(xxhash libxxhash)
cairn_pkg(sqlite sqlite3)
cairn_pkg(uv libuv)
cairn_pkg(fyaml libfyaml)
cairn_pkg(jansson jansson)
cairn_pkg(zlib zlib)
cairn_pkg(curl libcurl)
cairn_pkg(expat expat)
cairn_pkg(crypto libcrypto)
cairn_lib(m math.h m)
cairn_lib(dnnl oneapi/dnnl/dnnl.h dnnl)
cairn_lib(gloo gloo/context.h gloo)
cairn_lib(cmocka cmocka.h cmocka)

find_program(PROTOC_C protoc-c REQUIRED)
find_program(PROTOC protoc REQUIRED)
