#!/usr/bin/python3
"""Properties of the source text that compilers don't check.

    tidy.py ROOT      prints "file:line: what" per finding; exit status 1 if there is any
    tidy.py --self    plants one violation of each kind and checks that it is found

 - an outside library is included only where it belongs (our own layers: layers.py);
 - lines have at most 100 columns, functions at most 70 lines, files at most 600;
 - no macro hides a return or a goto, unless it defines a whole function; no // comment, no tab, no trailing space;
 - no banned function, no note-to-self, no included .c file, no sleep outside tests;
 - the operand of sizeof stands in parentheses;
 - what a function uses as a pointer is compared with NULL, and not tested as it is;
 - a tag (of a struct, a union, an enum) that a header of the product declares has one definition in the product, which is
   everything outside tests/ and bench/. A file's own struct doesn't share its name either.
"""
import os
import re
import sys
import tempfile

FOLDERS = ("common", "proto", "jobspec", "webhook", "kernels", "checkpoint", "identity", "rpc", "comm", "session", "trainer", "agent", "server",
           "client", "observer", "python", "bench", "tests")
LIBRARIES = {  # header prefix: where it may be included
    "Python.h": "python/cairn",
    "grpc/": "rpc",
    "oneapi/": "kernels/cpu",
    "gloo/": "comm/gloo_shim",
    "sqlite3.h": "server/journal",
    "uv.h": "agent",
    "libfyaml.h": "jobspec/yaml/read_yaml",
    "zstd.h": "checkpoint/codec",
    "xxhash.h": ("checkpoint/format", "observer/http/live", "observer/export/notices"),
    "curl/": ("checkpoint/s3", "webhook", "observer/webhook", "client/action/webhook"),
    "expat.h": "checkpoint/s3",
    "openssl/": ("checkpoint/s3", "identity", "webhook"),
    "zlib.h": ("trainer/data", "client/archive"),
    "microhttpd.h": "observer/http",
    "isa-l/": "observer/tensorboard",
    "cuda": "kernels/cuda",
    "cublas": "kernels/cuda",
    "cudnn": "kernels/cuda",
    "nvtx3/": "kernels/cuda",
    "nccl.h": "comm/nccl",
}
BANNED = re.compile(r"(?<![A-Za-z0-9_])(strcpy|strcat|sprintf|vsprintf|strncpy|strtok|atoi|atof|gets|"
                    r"alloca|rand|mktemp|localtime)\s*\(")
SLEEP = re.compile(r"(?<![A-Za-z0-9_])u?sleep\s*\(")
NOTE = re.compile(r"\b(FIXME|TODO|XXX|HACK)\b")
DEFINES_FUNCTION = re.compile(r"#define [^\n]*\\\n    static [^\n;]*\\\n    \{ *\\")
HIDDEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
SIZEOF = re.compile(r"\bsizeof\b(?!\(|\.\.\.)")
DEFINED = re.compile(r"\b(?:struct|union|enum)\s+(\w+)\s*(?::\s*\w+\s*)?\{")
DECLARED = re.compile(r"^(?:struct|union) (\w+);", re.M)
OPAQUE = {  # tags with several definitions: why
    "backend": "kernels/backend.h declares it, each backend has its own",
    "kernel": "kernels/backend.h declares it, each backend has its own",
    "stream": "kernels/backend.h declares it, each backend has its own",
    "event": "kernels/backend.h declares it, each backend has its own",
    "comm": "comm/comm.h declares it, Gloo's and NCCL's have their own",
}
POINTER = re.compile(r"\*(?:const )?(\w+)\b(?!\s*[\[(])")  # declared, or what it points to is used
COLUMNS_MAX, FUNCTION_LINES_MAX, FILE_LINES_MAX = 100, 70, 600


def without_strings(line):
    return re.sub(r'"(\\.|[^"\\])*"', '""', line)


def check_include(path, line):
    own = re.match(r'#include "([^"]+)"', line)
    if own:
        if own.group(1).endswith(".c"):
            yield "includes a .c file"
    outside = re.match(r"#include <([^>]+)>", line)
    for prefix, where in LIBRARIES.items():
        if outside and outside.group(1).startswith(prefix):
            places = (where,) if isinstance(where, str) else where
            if not path.startswith((*places, "tests/", "bench/")):
                yield f"<{outside.group(1)}> belongs in {' or '.join(places)}"


def check_line(path, line, hides):
    if len(line) > COLUMNS_MAX:
        yield f"longer than {COLUMNS_MAX} columns"
    if "\t" in line:
        yield "tab"
    if line.endswith(" "):
        yield "trailing space"
    code = without_strings(line)
    yield from check_include(path, line)
    if re.search(r"(^|\s)//", code):
        yield "// comment"
    banned = BANNED.search(code)
    if banned:
        yield "banned: " + banned.group(1)
    if SLEEP.search(code) and not path.startswith("tests/"):
        yield "sleep outside tests"
    if NOTE.search(line):
        yield "note to self"
    if hides and re.search(r"\b(return|goto)\b", code):
        yield "macro hides control flow"


def without_comments(text):
    return HIDDEN.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def null_tests(lines):
    """(line, pointer) of each pointer in a function that is tested without a comparison"""
    first = 0  # of the function's head
    for number, line in enumerate(lines):
        if line in ("", "}", "};"):
            first = number + 1
            continue
        if line != "{":
            continue
        end = next((i for i in range(number, len(lines)) if lines[i] == "}"), number)
        names = "|".join(sorted(set(POINTER.findall("\n".join(lines[first:end])))))
        if not names:
            continue
        tested = re.compile(rf"!(?:{names})\b(?!\s*(?:[\[(.]|->))|\b(?:if|while) \((?:{names})\)|"
                            rf"(?:&&|\|\|) (?:{names})(?=\)| &&| \|\||;)|(?:\(|, |(?<![=!<>])= |return )(?:{names}) (?:&&|\|\||\?)")
        for i in range(number, end):
            for match in tested.finditer(lines[i]):
                yield i + 1, match.group()


def check_text(path, text):
    for number, line in enumerate(without_comments(text).split("\n"), 1):
        if SIZEOF.search(line):
            yield f"{path}:{number}: sizeof without parentheses"
    if path.endswith((".c", ".h")):
        for number, what in null_tests(without_comments(text).split("\n")):
            yield f"{path}:{number}: a pointer is compared with NULL: {what}"
    lines = text.split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    in_macro, start = False, 0
    for number, line in enumerate(lines, 1):
        if line.startswith("#define"):
            in_macro = not DEFINES_FUNCTION.match("\n".join(lines[number - 1 : number + 2]))
        for what in check_line(path, line, in_macro):
            yield f"{path}:{number}: {what}"
        in_macro = in_macro and line.endswith("\\")
        if line == "{":
            start = number
        if line.startswith("}") and start:
            if number - start + 1 > FUNCTION_LINES_MAX:
                yield f"{path}:{start}: function is longer than {FUNCTION_LINES_MAX} lines"
            start = 0
    if len(lines) > FILE_LINES_MAX:
        yield f"{path}:1: file is longer than {FILE_LINES_MAX} lines"


def check_tags(texts):
    """texts: {path: text} of all files"""
    defined, declared = {}, set()
    for path, text in texts.items():
        if path.startswith(("tests/", "bench/")):
            continue
        code = without_comments(text)
        for match in DEFINED.finditer(code):
            where = defined.setdefault(match.group(1), {})
            where.setdefault(path, code.count("\n", 0, match.start()) + 1)
        if path.endswith((".h", ".cuh")):
            declared.update(DEFINED.findall(code), DECLARED.findall(code))
    for tag in sorted(declared):
        where = defined.get(tag, {})
        if len(where) > 1 and tag not in OPAQUE:
            for path, number in where.items():
                others = ", ".join(other for other in where if other != path)
                yield f"{path}:{number}: tag {tag} is defined in {others}, too"
        if len(where) < 2 and tag in OPAQUE:
            yield f"tests/tidy/tidy.py: {tag} has one definition: it needs no row in OPAQUE"


def check_tree(root):
    texts = {}
    for folder in FOLDERS:
        for at, folders, files in os.walk(os.path.join(root, folder)):
            folders.sort()
            for name in sorted(files):
                if name.endswith((".c", ".h", ".cc", ".cpp", ".cu", ".cuh")):
                    full = os.path.join(at, name)
                    with open(full, encoding="utf-8") as file:
                        texts[os.path.relpath(full, root)] = file.read()
    for path, text in texts.items():
        yield from check_text(path, text)
    yield from check_tags(texts)


def self_test():
    planted = {
        "server/b.c": ("#include <grpc/grpc.h>", "belongs in rpc"),
        "trainer/m.c": ("#include <cuda_runtime_api.h>", "belongs in kernels/cuda"),
        "common/c.c": ("    strcpy(a, b);", "banned: strcpy"),
        "common/d.h": ("#define TRY(x) if (x) return 1", "control flow"),
        "common/d.c": ("#define F(x) \\\n    static int f_##x(void) \\\n    { \\\n        return x; \\\n    }", None),
        "common/e.c": ("int a; // no", "// comment"),
        "common/f.c": ("x" * 101, "columns"),
        "common/g.c": ("{\n" + "x;\n" * 70 + "}", "function is longer"),
        "common/h.c": ("x;\n" * 601, "file is longer"),
        "agent/i.c": ("    sleep(1);", "sleep outside"),
        "common/j.c": ("\tint a;", "tab"),
        "common/k.c": ('#include "common/x.c"', ".c file"),
        "common/l.c": ("/* " + "TO" + "DO */", "note to self"),
        "common/m.c": ("size_t a = sizeof *b; /* sizeof c */", "sizeof without"),
        "rpc/m.c": ("int f(const char *p)\n{\n    return !p;\n}", "compared with NULL: !p"),
        "rpc/n.c": ("int f(const char *p, int n)\n{\n    if (n && !*p && p[0])\n        return p == NULL;\n}", None),
        "common/n.h": ("struct twice {\n};", "defined in jobspec/n.h, too"),
        "jobspec/n.h": ("struct twice {\n};", "defined in common/n.h, too"),
        "common/o.h": ("struct hidden;", None),
        "common/o.c": ("struct hidden {\n};", "defined in agent/o.c, too"),
        "agent/o.c": ("struct hidden {\n};", "defined in common/o.c, too"),
        "agent/p.c": ("struct own {\n};", None),
        "client/p.c": ("struct own {\n}; /* sizeof c */", None),
        "tests/p.c": ("struct twice {\n};", None),
    }
    with tempfile.TemporaryDirectory() as root:
        for path, (text, _) in planted.items():
            os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(text + "\n")
        found = list(check_tree(root))
    for path, (_, want) in planted.items():
        at = [f for f in found if f.startswith(path + ":")]
        if not any(want in f for f in at) if want else at:
            print(f"not found: {want} in {path}" if want else f"found what is none: {at}")
            return 1
    print(f"{sum(want is not None for _, want in planted.values())} planted violations, all found")
    return 0


def main():
    if sys.argv[1:] == ["--self"]:
        return self_test()
    findings = list(check_tree(sys.argv[1]))
    for finding in findings:
        print(finding)
    return 1 if findings else 0


sys.exit(main())
