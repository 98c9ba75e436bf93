#!/usr/bin/python3
"""What comments and docs name exists: files, and the functions that make the transitions of a state diagram.

    references.py ROOT      prints "file:line: what" per finding; exit status 1 if there is any
    references.py --self    plants one violation of each kind and checks that it is found

 - A file named in a comment or in docs is there: by its path from the root, or, bare, in the folder of who names
   it. `loops/text*.c` names those that match.
 - In a comment with a diagram ("A -> B [function]", also with longer arrows), what stands in brackets is a
   function of the same folder.
 - In docs/walks.md, docs/hacking.md and docs/guarantees.md "`FILE` `name()`" means that FILE defines name.
 - What docs/hacking.md says to look for ("git grep WORD FOLDER") is found in a source.
 - Nobody cites what a reader of the repository can't open ("design 8").
"""
import os
import re
import shlex
import subprocess
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path

SOURCES = (".c", ".h", ".cc", ".cpp", ".cu", ".cuh")
WALKS = ("docs/walks.md", "docs/hacking.md", "docs/guarantees.md")
FILE = re.compile(r"(?<![\w/.*$<}-])((?:[\w.*-]+/)*[\w*-]+\.(?:c|h|cc|cpp|cu|cuh|proto|py|sh|cmake|md))(?![\w/(])")
COMMENT = re.compile(r"/\*.*?\*/", re.S)
ARROW = re.compile(r"-+>|─+▶|──")
BRACKET = re.compile(r"\[([^\[\]]+)\]")
DESIGN = re.compile(r"\bdesign,? (?:section )?\d")
# Names of projects and of files that are other people's, or made at run or build time.
OUTSIDE = {"llm.c", "README.md", "PERFORMANCE.md", "format_checks.h", "fineweb.py", "health-checking.md",
           "transformer.h", "train.py", "model.c"}
OUTSIDE_LIKE = ("*.pb-c.h", "*.pb-c.c", "cudnn*.h", "cublas*.h", "nccl.h", "sqlite3.h", "src/ucs/*", "nvml.h", "xxhash.h", "zstd.h",
                "grpc*.h", "immintrin.h", "*/x.*", "x.*", "cuda*.h", "mma.h")


def files_of(root):
    try:
        out = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard"], check=True, capture_output=True,
                             text=True).stdout.split("\n")
    except (OSError, subprocess.CalledProcessError):
        out = [str(path.relative_to(root)) for path in Path(root).rglob("*") if path.is_file()]
    return {name for name in out if name and Path(root, name).exists()}


def exists(name, folder, files):
    if os.path.basename(name) in OUTSIDE or any(fnmatch(name, like) for like in OUTSIDE_LIKE):
        return True
    for path in (name, os.path.join(folder, name), "proto/" + name, "proto/cairn/v1/" + name):
        if "*" in path:
            if any(fnmatch(file, path) for file in files):
                return True
        elif os.path.normpath(path) in files:
            return True
    return False


def functions_of(root, files):
    """{folder: names of functions defined there}"""
    found = {}
    for name in files:
        if name.endswith(SOURCES):
            text = Path(root, name).read_text(encoding="utf-8")
            names = re.findall(r"^(?!#|\s|\})[\w *]*?(\w+)\([^;{}]*?\)\s*\{", text, re.M)
            folder = os.path.dirname(name)
            while folder: # a header's diagram may name functions of the folders in its own
                found.setdefault(folder, set()).update(names)
                folder = os.path.dirname(folder)
    return found


def check_names(text, line, folder, files):
    for match in FILE.finditer(text):
        if not exists(match[1], folder, files):
            yield line + text.count("\n", 0, match.start()), f"names {match[1]}, which doesn't exist"
    for match in DESIGN.finditer(text):
        yield line + text.count("\n", 0, match.start()), f"cites '{match[0]}', which no reader can open"


def check_diagram(text, line, names):
    """Only bracketed lists of plain names, on lines with an arrow (or right below one)."""
    rows = text.split("\n")
    for at, row in enumerate(rows):
        if not ARROW.search(row):
            continue
        for inside in BRACKET.findall(row):
            for part in inside.split(","):
                word = part.split()[0] if part.split() else ""
                if re.fullmatch(r"[a-z]\w+", word) and "_" in word + part and word not in names:
                    yield line + at, f"the diagram names {word}, which is no function of this folder or of one in it"


def check_walks(root, text, files):
    for at, row in enumerate(text.split("\n"), 1):
        for name, called in re.findall(r"`([\w/.]+\.\w+)`((?: `\w+\(\)`,?)+)", row):
            source = Path(root, name).read_text(encoding="utf-8") if name in files else ""
            for function in re.findall(r"`(\w+)\(\)`", called):
                in_python = rf"^ *def {function}\("
                in_c = rf"^(?!#|\s)[\w *]*?\b{function}\([^;{{}}]*?\)\s*\{{"
                if not re.search(in_python if name.endswith(".py") else in_c, source, re.M):
                    yield at, f"says that {name} defines {function}()"


def check_greps(root, text, files):
    for at, row in enumerate(text.split("\n"), 1):
        for line in re.findall(r"`git grep ([^`]+)`", row):
            words = shlex.split(line)
            flags = re.I if "-i" in words else 0
            word, *folder = [word for word in words if word != "-i"]
            sources = [name for name in files if name.endswith(SOURCES) and name.startswith(tuple(folder) or "")]
            if not any(re.search(re.escape(word), Path(root, name).read_text(encoding="utf-8"), flags) for name in sources):
                yield at, f"says 'git grep {line}', which finds nothing"


def check_tree(root):
    files = files_of(root)
    functions = functions_of(root, files)
    for name in sorted(files):
        folder = os.path.dirname(name)
        path = Path(root, name)
        if name.endswith(SOURCES):
            text = path.read_text(encoding="utf-8")
            for comment in COMMENT.finditer(text):
                line = text.count("\n", 0, comment.start()) + 1
                for at, what in check_names(comment[0], line, folder, files):
                    yield f"{name}:{at}: {what}"
                for at, what in check_diagram(comment[0], line, functions.get(folder, set())):
                    yield f"{name}:{at}: {what}"
        elif name.endswith((".md", "CMakeLists.txt", ".py", ".cmake", ".proto")):
            if name.startswith("tests/tidy/"):
                continue # these speak of files that don't exist
            if name == "docs/hacking.md":
                for at, what in check_greps(root, path.read_text(encoding="utf-8"), files):
                    yield f"{name}:{at}: {what}"
            if name in WALKS:
                for at, what in check_walks(root, path.read_text(encoding="utf-8"), files):
                    yield f"{name}:{at}: {what}"
            for at, what in check_names(path.read_text(encoding="utf-8"), 1, folder, files):
                if name.endswith((".md", ".proto")) or "cites" in what:
                    yield f"{name}:{at}: {what}"


def self_test():
    planted = {
        "a/one.c": ("/* See gone.c. */", "names gone.c"),
        "a/two.c": ("/* A -> B [gone_away] */", "names gone_away"),
        "a/three.h": ("/* As it must be (design 5). */", "cites 'design 5'"),
        "docs/four.md": ("`a/five.c`", "names a/five.c"),
        "a/six.c": ("/* one*.cu */", "names one*.cu"),
        "docs/walks.md": ("1. `b/one.c` `make_it()`, `lose_it()`: makes", "b/one.c defines lose_it()"),
        "docs/hacking.md": ("Example: `git grep -i MAKE_IT b`, `git grep 'lost it'`", "says 'git grep 'lost it''"),
        "docs/guarantees.md": ("`b/test.py` `test_it()`, `test_gone()`", "b/test.py defines test_gone()"),
    }
    good = {"b/one.c": "/* two.h, a/one.c and on*.c; A ──▶ B [make_it, no words here]; llm.c */\nint make_it(void)\n{\n}\n",
            "b/two.h": "int x;\n", "b/test.py": "def test_it(tmp_path):\n"}
    with tempfile.TemporaryDirectory() as root:
        for path, text in [(path, text) for path, (text, _) in planted.items()] + list(good.items()):
            Path(root, path).parent.mkdir(parents=True, exist_ok=True)
            Path(root, path).write_text(text + "\n", encoding="utf-8")
        found = list(check_tree(root))
    missed = [f"{want} in {path}" for path, (_, want) in planted.items()
              if not any(f.startswith(path) and want in f for f in found)]
    wrong = [f for f in found if f.startswith("b/")]
    for what in missed:
        print("not found:", what)
    for what in wrong:
        print("found, but nothing is wrong:", what)
    print(f"{len(planted)} planted violations")
    return 1 if missed or wrong else 0


def main():
    if sys.argv[1:] == ["--self"]:
        return self_test()
    findings = list(check_tree(sys.argv[1]))
    print(*findings, sep="\n")
    return 1 if findings else 0


sys.exit(main())
