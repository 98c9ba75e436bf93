#!/usr/bin/env python3
"""guards.py FOLDER: the programs in FOLDER (build/dev/bin) have the guards that cmake/options.cmake asks the
compiler for: a canary in functions with arrays, checked copies, position-independent code, a table of foreign
functions that nobody can write to once the program runs. Reads them with readelf. --self: with programs of its
own, of which one has the guards and each other lacks one of them."""
import os
import subprocess
import sys
import tempfile

PROGRAMS = ["cairn", "cairnd", "cairn-agent", "cairn-trainer", "cairn-observer"]


def readelf(option, path):
    return subprocess.run(["readelf", "-W", option, path], check=True, capture_output=True, text=True).stdout


def missing(path):
    """What the program at `path` lacks, a word each."""
    dynamic, symbols, segments = readelf("-d", path), readelf("--dyn-syms", path), readelf("-l", path)
    lacks = []
    if "__stack_chk_fail" not in symbols:
        lacks.append("canary")
    if not any(line.split("@")[0].endswith("_chk") for line in symbols.splitlines()):
        lacks.append("fortify")
    if "NOW" not in dynamic:
        lacks.append("now")
    if "GNU_RELRO" not in segments:
        lacks.append("relro")
    if "DYN (" not in readelf("-h", path):
        lacks.append("pie")
    return lacks


SOURCE = """
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv) {
    char text[64];
    for (int i = 0; i < argc; i++)
        strcpy(text, argv[i]);
    return printf("%s %d", text, argc) < 0;
}
"""
GUARDS = {
    "canary": ("-fstack-protector-strong", "-fno-stack-protector"),
    "fortify": ("-D_FORTIFY_SOURCE=2", "-D_FORTIFY_SOURCE=0"),
    "now": ("-Wl,-z,now", "-Wl,-z,lazy"),
    "relro": ("-Wl,-z,relro", "-Wl,-z,norelro"),
    "pie": ("-pie", "-no-pie"),
}


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "program.c")
        with open(source, "w", encoding="ascii") as file:
            file.write(SOURCE)
        for without in [None, *GUARDS]:
            flags = [GUARDS[name][name == without] for name in GUARDS]
            program = os.path.join(folder, "program")
            subprocess.run(["gcc", "-w", "-O2", "-fPIE", "-U_FORTIFY_SOURCE", source, "-o", program, *flags], check=True)
            found, expected = missing(program), [without] if without else []
            if found != expected:
                sys.exit(f"without {without}: {found} were missed")
    print("each missing guard is found")


def main():
    if sys.argv[1] == "--self":
        return self_test()
    lacks = {name: missing(os.path.join(sys.argv[1], name)) for name in PROGRAMS}
    bad = {name: words for name, words in lacks.items() if words}
    for name, words in bad.items():
        print(f"{name}: built without {', '.join(words)} (cmake/options.cmake)")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
