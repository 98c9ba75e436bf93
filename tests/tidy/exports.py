#!/usr/bin/env python3
"""exports.py LIBCAIRN HEADER: libcairn needs libc and its loader only, and exports what its header declares and
nothing else, each with a version. Reads it with readelf. --self: with libraries of its own, of which one is sound
and each other breaks one of these rules."""
import os
import re
import subprocess
import sys
import tempfile

NEEDED = re.compile(r"libc\.so\.6|libm\.so\.6|ld-linux-.*")


def readelf(option, path):
    return subprocess.run(["readelf", "-W", option, path], check=True, capture_output=True, text=True).stdout


def declared(header):
    text = re.sub(r"/\*.*?\*/", "", open(header, encoding="utf-8").read(), flags=re.S)
    return {match[1] for match in re.finditer(r"CAIRN_API[^;]*?\b(cairn_\w+)\(", text)}


def findings(library, header):
    found = []
    for name in re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d", library)):
        if not NEEDED.fullmatch(name):
            found.append(f"it needs {name}")
    exported = set()
    for line in readelf("--dyn-syms", library).splitlines():
        words = line.split()
        if len(words) < 8 or words[4] not in ("GLOBAL", "WEAK") or words[6] in ("UND", "ABS"):
            continue
        name, _, version = words[7].partition("@@")
        exported.add(name)
        if not version.startswith("CAIRN_"):
            found.append(f"{words[7]} has no version")
    wanted = declared(header)
    found += [f"{name} is exported, and not declared" for name in sorted(exported - wanted)]
    found += [f"{name} is declared, and not exported" for name in sorted(wanted - exported)]
    return found


HEADER = "/* CAIRN_API no(); */ CAIRN_API int\ncairn_one(int);\nCAIRN_API CAIRN_MUST_CHECK int cairn_two(void);\n"
SOURCE = "#include <math.h>\nint cairn_one(int a) { return a; }\nint cairn_two(void) { return 2; }\n"
MAP = "CAIRN_1 { global: cairn_*; local: *; };\n"
PLANTED = {  # what is added to the source, the map, the command line
    "": ("", MAP, []),
    "needs libz.so.1": ("", MAP, ["-Wl,--no-as-needed", "-lz"]),
    "cairn_three is exported": ("int cairn_three(void) { return 3; }\n", MAP, []),
    "cairn_two is declared": ("", "CAIRN_1 { global: cairn_one; local: *; };\n", []),
    "has no version": ("", "{ global: cairn_*; local: *; };\n", []),
}


def check_self():
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("a.h", "a.c", "a.map", "liba.so")]
        for expected, (more, version_map, options) in PLANTED.items():
            for path, text in zip(paths, (HEADER, SOURCE + more, version_map)):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
            subprocess.run(["cc", "-shared", "-fPIC", "-Wl,--version-script=" + paths[2], "-o", paths[3], paths[1],
                            *options], check=True)
            found = findings(paths[3], paths[0])
            if bool(found) != bool(expected) or not any(expected in line for line in found or [""]):
                sys.exit(f"planted: {expected or 'nothing'}; found: {found}")


if __name__ == "__main__":
    if sys.argv[1] == "--self":
        check_self()
    else:
        lines = findings(sys.argv[1], sys.argv[2])
        print("\n".join(lines))
        sys.exit(1 if lines else 0)
