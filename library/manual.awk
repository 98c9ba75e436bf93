# libcairn(3) of cairn.h, as roff: the header is the manual, so that no page can say anything else. -v version=…
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
    print ".TH LIBCAIRN 3 \"\" \"Cairn " version "\""
    print ".SH NAME"
    print "libcairn \\- saves the state of a program that trains, and gives it back"
    section("synopsis")
    put("#include <cairn.h>")
    put("")
    put("cc program.c $(pkg-config --cflags --libs cairn)")
}
NR == 1 { section("description"); about = 1; next }
about && /^ \*\// { about = 0; section("results"); next }
about { sub(/^ \* ?/, ""); put($0); next }
/^#(ifndef|ifdef|if|else|endif|include|define CAIRN_(H|API|MUST_CHECK))/ || /^extern "C"/ || /^}$/ { next }
/^\/\* ---- .* ---- \*\/$/ {
    gsub(/^\/\* ---- | ---- \*\/$/, "")
    section($0)
    next
}
{
    gsub(/CAIRN_API |CAIRN_MUST_CHECK /, "")
    if ($0 != "" || last != "")
        put($0)
    last = $0
}
END {
    print ".fi"
    print ".SH SEE ALSO"
    print ".BR cairn (1)"
}
