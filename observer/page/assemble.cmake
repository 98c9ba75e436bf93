# index.html with every stylesheet and script that it names put in its place, the policy under which
# only these scripts run (by their SHA-256), and a tag of it: other bytes, another tag.
#
#   cmake -D FOLDERS=A:B -D HTML=OUT -D CSP=OUT -D TAG=OUT -P assemble.cmake     files are looked for in A, then in B
string(REPLACE ":" ";" FOLDERS "${FOLDERS}")

function(part_read name out)
    foreach(folder IN LISTS FOLDERS)
        if(EXISTS "${folder}/${name}")
            file(READ "${folder}/${name}" text)
            # A debugger would ask the server for it.
            string(REGEX REPLACE "[/*]+# sourceMappingURL=[^\n ]*[ */]*" "" text "${text}")
            set(${out} "${text}" PARENT_SCOPE)
            return()
        endif()
    endforeach()
    message(FATAL_ERROR "index.html names ${name}, which is in none of: ${FOLDERS}")
endfunction()

# The digits of a SHA-256 in base64: three of them are two letters there; one is left, and a "=".
function(base64_of_sha256 hex out)
    set(letters ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/)
    set(text "")
    foreach(at RANGE 0 60 3)
        string(SUBSTRING ${hex} ${at} 3 three)
        math(EXPR high "0x${three} >> 6")
        math(EXPR low "0x${three} & 63")
        string(SUBSTRING ${letters} ${high} 1 first)
        string(SUBSTRING ${letters} ${low} 1 second)
        string(APPEND text ${first}${second})
    endforeach()
    string(SUBSTRING ${hex} 63 1 one)
    math(EXPR high "0x${one} << 2")
    string(SUBSTRING ${letters} ${high} 1 first)
    set(${out} "${text}${first}=" PARENT_SCOPE)
endfunction()

part_read(index.html page)

while(page MATCHES "<link rel=\"stylesheet\" href=\"([^\"]+)\">")
    set(tag "${CMAKE_MATCH_0}")
    part_read("${CMAKE_MATCH_1}" text)
    string(REPLACE "${tag}" "<style>\n${text}</style>" page "${page}")
endwhile()

set(hashes "")
while(page MATCHES "<script src=\"([^\"]+)\"></script>")
    set(tag "${CMAKE_MATCH_0}")
    set(name "${CMAKE_MATCH_1}")
    part_read("${name}" text)
    if(text MATCHES "</script|<!--")
        message(FATAL_ERROR "${name} holds what would end its script")
    endif()
    string(REPLACE "${tag}" "<script>${text}</script>" page "${page}")
    string(SHA256 hex "${text}")
    base64_of_sha256(${hex} hash)
    string(APPEND hashes " 'sha256-${hash}'")
endwhile()

file(WRITE "${HTML}" "${page}")
string(SHA256 hex "${page}")
string(SUBSTRING ${hex} 0 16 tag)
file(WRITE "${TAG}" "${tag}")
file(WRITE "${CSP}" "default-src 'none'; script-src${hashes}; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
