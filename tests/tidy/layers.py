#!/usr/bin/python3
"""Folders are layers: who may include and use what, how much a folder holds, no circle between files.

    layers.py ROOT      prints "file: what" per finding; exit status 1 if there is any
    layers.py --self    plants one violation of each kind and checks that it is found
    layers.py --circles ROOT    what holds each circle together

 - The table tests/tidy/layers.txt is the rule. A row is a folder; it may include itself and the folders of its
   last column, and use the functions and objects that are defined there, wherever a header declares them.
   `a/b` names that folder alone; `a`, in the row of another top-level folder, names all of `a`.
 - Every folder with sources has a row, a row has a folder, no chain of rows comes back to where it began.
 - A folder holds at most SOURCES_MAX compiled files.
 - Files of one stem are one node. A node leans on the headers it includes, and on where the functions and
   objects are defined that it uses of them. No chain of these comes back to where it began.
"""
import os
import re
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

TABLE = "tests/tidy/layers.txt"
SOURCES_MAX = 15
COMPILED = (".c", ".cc", ".cpp", ".cu")
HEADERS = (".h", ".cuh")
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
FUNCTION = re.compile(r"^(?!static\b|typedef\b|#|\s|\})(?:[\w*]+[\s*]+)+?(\w+)\([^;{}]*?\)\s*\n\{", re.M)
OBJECT = re.compile(r"^(?!static\b|typedef\b|extern\b|#|\s|\})(?:const |struct |enum )[\w* ]*?(\w+)(?:\[[^\]]*\])* = ", re.M)
WORD = re.compile(r"\b[A-Za-z_]\w+\b")


def table_of(text):
    """{folder: (what it is, [what it may depend on])} of the rows "folder | what it is | may depend on"."""
    rows = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            folder, what, allowed = (cell.strip() for cell in line.split(" | "))
            rows[folder] = (what, [] if allowed == "–" else allowed.split())
    return rows


def top_of(folder):
    """The first folder of a path."""
    return folder.split("/")[0]


def may_include(table, folder, target):
    if folder == target:
        return True
    for allowed in table[folder][1]:
        if allowed in ("*", target):
            return True
        if allowed == top_of(allowed) != top_of(folder) and top_of(target) == allowed:
            return True
    return False


def folder_of(include):
    """The folder of an included path; headers that are made at build time belong to proto."""
    folder = os.path.dirname(include)
    return "proto" if top_of(folder) in ("cairn", "grpc") else folder


def read_tree(root, table):
    """{path: text} of all sources of the top-level folders that the table knows."""
    files = {}
    for top in sorted({top_of(folder) for folder in table}):
        for path in sorted(Path(root, top).rglob("*")):
            if path.suffix in COMPILED + HEADERS:
                files[str(path.relative_to(root))] = path.read_text(encoding="utf-8")
    return files


def check_folders(root, table, files):
    count = defaultdict(int)
    for path in files:
        count[os.path.dirname(path)] += path.endswith(COMPILED)
    free = {folder for folder in table if table[folder][1] == ["*"]}  # tests, bench: whatever lies in them
    for folder, sources in sorted(count.items()):
        if folder not in table and top_of(folder) not in free:
            yield f"{folder}: has no row in {TABLE}"
        if sources > SOURCES_MAX:
            yield f"{folder}: {sources} sources, more than {SOURCES_MAX}: it wants a theme of its own"
    for folder in table:
        if not Path(root, folder).is_dir():
            yield f"{TABLE}: a row for {folder}, which is no folder"
    below = {folder: [other for other in table if other != folder and may_include(table, folder, other)]
             for folder in table if folder not in free}
    for circle in circles_of(below):
        yield f"{TABLE}: rows in a circle: {' '.join(circle)}"


def row_of(table, path):
    """The folder of a file as far up as the table has it; "": it has none."""
    folder = os.path.dirname(path)
    while folder and folder not in table:
        folder = os.path.dirname(folder)
    return folder


def check_includes(table, files):
    for path, text in files.items():
        folder = row_of(table, path)
        for include in INCLUDE.findall(text):
            target = folder_of(include)
            if folder in table and not may_include(table, folder, target):
                yield f"{path}: {folder} may not include {include}"


# ---- circles between files ----

def without_comments(text):
    text = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.S)
    return re.sub(r'"(\\.|[^"\\\n])*"', '""', text)


def outside_braces(text):
    depth, out = 0, []
    for char in re.sub(r"^#(?:.*\\\n)*.*", "", text, flags=re.M):
        depth += char == "{"
        if depth == 0:
            out.append(char)
        depth -= char == "}"
    return "".join(out)


def stem(path):
    return os.path.splitext(path)[0]


def declared_in(text):
    """What a header leaves to others to define."""
    own = set(re.findall(r"^(?![\s#}])[^;{}]*?(\w+)\([^;{}]*\)\s*\{", text, re.M))
    text = outside_braces(text)
    objects = re.findall(r"^extern [^;(]*?(\w+)(?:\[[^\]]*\])*[,;]", text, re.M)
    return set(re.findall(r"(\w+)\s*\(", text)) - own | set(objects)


def closest(header, stems):
    """Of several files that define a name, those that lie nearest to the header that declares it."""
    shared = {one: len(os.path.commonprefix([header, one])) for one in stems}
    return {one for one in stems if shared[one] == max(shared.values())}


def graph_of(files):
    """{stem: {stem it leans on: names}}"""
    code = {path: without_comments(text) for path, text in files.items()}
    includes = {path: [name for name in INCLUDE.findall(text) if name in files] for path, text in files.items()}
    defined = defaultdict(set)
    for path, text in code.items():
        if path.endswith(COMPILED):
            for name in FUNCTION.findall(text) + OBJECT.findall(text):
                defined[name].add(stem(path))
    declared = {path: declared_in(text) & set(defined) for path, text in code.items() if path.endswith(HEADERS)}

    def seen_by(path, seen):
        for include in includes[path]:
            if include not in seen:
                seen.add(include)
                seen_by(include, seen)
        return seen

    graph = defaultdict(lambda: defaultdict(set))
    for path, text in code.items():
        node = graph[stem(path)]
        for include in includes[path]:
            if stem(include) != stem(path):
                node[stem(include)].add(include)
        if path.endswith(COMPILED):
            words = set(WORD.findall(text))
            for header in seen_by(path, set()):
                for name in declared.get(header, set()) & words:
                    if stem(path) not in defined[name]:
                        for one in closest(header, defined[name]):
                            node[one].add(name)
    return graph


def circles_of(graph):
    """Strongly connected components of more than one node (Tarjan)."""
    index, low, stack, on_stack, found = {}, {}, [], set(), []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        on_stack.add(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in on_stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            circle = []
            while not circle or circle[-1] != node:
                circle.append(stack.pop())
                on_stack.discard(circle[-1])
            if len(circle) > 1:
                found.append(sorted(circle))

    sys.setrecursionlimit(10000)
    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(found)


def product(table, files):
    free = {folder for folder in table if table[folder][1] == ["*"]}
    return {path: text for path, text in files.items() if top_of(path) not in free}


def check_uses(table, graph):
    for node, leans_on in sorted(graph.items()):
        folder = row_of(table, node)
        for other, why in sorted(leans_on.items()):
            names = sorted(name for name in why if not name.endswith(HEADERS))
            if names and folder and not may_include(table, folder, row_of(table, other)):
                yield f"{node}: {folder} may not use {', '.join(names)} of {other}"


def check_circles(graph):
    for circle in circles_of(graph):
        yield "files in a circle (--circles shows why): " + " ".join(circle)


def check_tree(root):
    table = table_of(Path(root, TABLE).read_text(encoding="utf-8"))
    files = read_tree(root, table)
    yield from check_folders(root, table, files)
    yield from check_includes(table, files)
    graph = graph_of(product(table, files))
    yield from check_uses(table, graph)
    yield from check_circles(graph)


def show_circles(root):
    table = table_of(Path(root, TABLE).read_text(encoding="utf-8"))
    graph = graph_of(product(table, read_tree(root, table)))
    for circle in circles_of(graph):
        print(len(circle), *circle)
        for one in circle:
            for other in sorted(set(graph[one]) & set(circle)):
                print("   ", one, "->", other, *sorted(graph[one][other])[:6])


def self_test():
    table = """
# folder | what it is | may depend on

common | the lowest | –
house/low | lower | common
house/high | higher | house/low common
other | uses | house common
absent | no folder | –
tests | whatever | *
"""
    planted = {
        "house/low/a.c": ('#include "house/high/b.h"', "house/low may not include"),
        "common/c.c": ('#include "other/d.h"', "common may not include"),
        "house/new/e.c": ("int e;", "house/new: has no row"),
        "house/low/up.h": ("int up(void);", ""),
        "house/low/f.c": ('#include "house/low/up.h"\nint f(void)\n{\n    return up();\n}',
                          "house/low may not use up of house/high/up"),
        "house/high/up.c": ('#include "house/low/up.h"\nint up(void)\n{\n    return 1;\n}', ""),
        "house/low/own.h": ("static inline int own(void)\n{\n    return 1;\n}", ""),
        "house/low/g.c": ('#include "house/low/own.h"\nint g(void)\n{\n    return own();\n}', ""),
        "house/high/own.c": ("int own(void)\n{\n    return 2;\n}", ""),
        "house/low/one.h": ('#include "house/low/two.h"', ""),
        "house/low/two.h": ('#include "house/low/one.h"', "files in a circle"),
        TABLE: (table, "a row for absent"),
    } | {f"common/s{n}.c": ("int s;", "common: 17 sources") for n in range(16)}
    with tempfile.TemporaryDirectory() as root:
        for path, (text, _) in planted.items():
            Path(root, path).parent.mkdir(parents=True, exist_ok=True)
            Path(root, path).write_text(text + "\n", encoding="utf-8")
        found = list(check_tree(root))
    missed = [want for _, want in planted.values() if want and not any(want in f for f in found)]
    missed += [f"nothing in {f}" for f in found if f.startswith("house/low/g")]
    circle = [f for f in found if "in a circle" in f]
    if len(circle) != 1 or "house/low/one house/low/two" not in circle[0]:
        missed.append("files in a circle")
    good = {"a/x.h": "int x_get(void);", "a/x.c": '#include "a/x.h"\nint x_get(void)\n{\n}\n',
            "a/y.h": "int y_get(void);", "a/y.c": '#include "a/x.h"\n#include "a/y.h"\nint y_get(void)\n{\n    x_get();\n}\n'}
    bad = good | {"a/x.c": '#include "a/x.h"\n#include "a/y.h"\nint x_get(void)\n{\n    return y_get();\n}\n'}
    if circles_of(graph_of(good)) or circles_of(graph_of(bad)) != [["a/x", "a/y"]]:
        missed.append("a circle between files")
    rows = table_of(table.replace("house/low | lower | common", "house/low | lower | house/high"))
    if not any("in a circle" in f for f in check_folders("/", rows, {})):
        missed.append("a circle between rows")
    print(*(f"not found: {want}" for want in missed), sep="\n")
    print(f"{sum(want != '' for _, want in planted.values()) + 2} planted violations")
    return 1 if missed else 0


def main():
    if sys.argv[1:] == ["--self"]:
        return self_test()
    if sys.argv[1] == "--circles":
        show_circles(sys.argv[2])
        return 0
    findings = list(check_tree(sys.argv[1]))
    print(*findings, sep="\n")
    return 1 if findings else 0


sys.exit(main())
