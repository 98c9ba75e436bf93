# libcairn(3) of cairn.h and cairn-model(3) of model.h, as roff: the header is the manual, so that no page can say
# anything else. -v version=… -v name=… -v does=…
function put(line) {
    gsub(/\\/, "\\e", line)
    gsub(/-/, "\\-", line)
    if (line ~ /^[.']/)
        line = "\\\\&" line
    print line
}
function section(name) {
    if (open)
        print ".fi"
    print ".SH " toupper(name)
    print ".nf"
    open = 1
}
BEGIN {
    print ".TH " toupper(name) " 3 \"\" \"Cairn " version "\""
    print ".SH NAME"
    print name " \\- " does
    section("synopsis")
    put(name == "libcairn" ? "#include <cairn.h>" : "#include <cairn/model.h>")
    put("")
    put(name == "libcairn" ? "cc program.c $(pkg-config --cflags --libs cairn)" : \
        "cc -shared -fPIC $(pkg-config --cflags cairn) -o model.so model.c")
}
NR == 1 { section("description"); about = 1; next }
about && /^ \*\// { about = 0; section("results"); next }
about { sub(/^ \* ?/, ""); put($0); next }
/^#(ifndef|ifdef|if|else|endif|include|define CAIRN_(H|API|MUST_CHECK|MODEL_H|MODEL_API|MODEL_WEAK))/ || /^extern "C"/ || /^}$/ { next }
/^\/\* ---- .* ---- \*\/$/ {
    gsub(/^\/\* ---- | ---- \*\/$/, "")
    section($0)
    next
}
{
    gsub(/CAIRN_API |CAIRN_MUST_CHECK |CAIRN_MODEL_API |CAIRN_MODEL_WEAK /, "")
    if ($0 != "" || last != "")
        put($0)
    last = $0
}
END {
    print ".fi"
    print ".SH SEE ALSO"
    print ".BR cairn (1)"
}
