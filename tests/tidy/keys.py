#!/usr/bin/python3
"""Every key of the job file that is accepted has a reader: who sets it gets what it says.

    keys.py ROOT      prints "jobspec/schema.c:line: what" per finding; exit status 1 if there is any
    keys.py --self    plants one violation of each kind and checks that it is found

 - A row of jobspec/schema.c that keeps its value (AT(member)) is read outside jobspec/, tests and benches: a file that includes
   jobspec/jobspec.h has `section.key` in its code, or `->key` and the section. What isn't built yet has FIELD_UNBUILT instead: another value than
   the default is then refused where it stands.
 - A row that keeps nothing (NOWHERE) has FIELD_UNBUILT, or one built word at most.
"""
import re
import sys
import tempfile
from pathlib import Path

ROW = re.compile(r'^    \{ "([\w.]+)", (FIELD_\w+), ([\w |]+),\s+(AT\(([\w.]+)\)|NOWHERE)(.*?)\},$', re.S | re.M)
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\])*\"", re.S)
INCLUDE = re.compile(r'^#include "jobspec/jobspec\.h"', re.M)
HOUSES = ("trainer", "server", "client", "agent", "session", "checkpoint", "comm", "kernels")
# Nobody need read these: what a size stands for is in other keys, and of tokenizers one word is built.
RESOLVED = {"model.size", "data.train.tokenizer", "data.eval.tokenizer"}


def includes_job(path, root, seen):
    """Directly, or by a header of its own house."""
    if path in seen or not path.exists():
        return False
    seen.add(path)
    text = path.read_text(encoding="utf-8")
    if INCLUDE.search(text):
        return True
    house = path.relative_to(root).parts[0]
    return any(includes_job(root / name, root, seen)
               for name in re.findall(r'^#include "((?:[\w.]+/)+[\w.]+\.h)"', text, re.M) if name.startswith(house + "/"))


def readers(root):
    """The code, without comments and texts, of each file that knows a job."""
    code = []
    for house in HOUSES:
        for path in sorted((root / house).rglob("*.[ch]")):
            if includes_job(path, root, set()):
                code.append(COMMENT.sub(" ", path.read_text(encoding="utf-8")))
    return code


def reads(text, member):
    """`section.key`, or `->key` where the file has something to do with the section as such."""
    section, _, leaf = member.rpartition(".")
    last = section.rpartition(".")[2]
    if not last:
        return re.search(rf"->{leaf}\b", text) is not None
    if re.search(rf"\b{last}\.{leaf}\b", text):
        return True
    parts = section.replace(".", "|")
    return re.search(rf"->{leaf}\b", text) and re.search(rf"[.>](?:{parts})\b|\bjobspec_(?:{parts})\b", text)


def check(root):
    """[(line, what)]"""
    root = Path(root)
    schema = (root / "jobspec/schema.c").read_text(encoding="utf-8")
    code = readers(root)
    found = []
    rows = list(ROW.finditer(schema))
    table = schema.partition("fields[] = {")[2].partition("\n};")[0]
    if len(rows) != table.count('\n    { "'):
        found.append((1, f"{len(rows)} rows of {table.count(chr(10) + '    { ' + chr(34))} were understood"))
    for row in rows:
        key, flags, member, rest = row.group(1), row.group(3), row.group(5), row.group(6)
        line = schema.count("\n", 0, row.start()) + 1
        if "FIELD_UNBUILT" in flags or key in RESOLVED:
            continue
        if member is None:
            built = re.search(r'\.words = "([^"|]*)', rest)
            if built is None or len(built.group(1).split()) > 1:
                found.append((line, f"{key} keeps no value and isn't FIELD_UNBUILT: it is accepted, and nobody reads it"))
            continue
        if not any(reads(text, member) for text in code):
            found.append((line, f"{key} is accepted, but nobody reads {member}: mark it FIELD_UNBUILT until somebody does"))
    return found


def self_check():
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "jobspec").mkdir()
        (root / "trainer").mkdir()
        (root / "jobspec/schema.c").write_text(
            'static const struct field fields[] = {\n'
            '    { "a.read", FIELD_INT, 0, AT(a.read), 1, 2, .fallback = "1" },\n'
            '    { "a.unread", FIELD_INT, 0, AT(a.unread), 1, 2,\n      .fallback = "1" },\n'
            '    { "a.later", FIELD_INT, FIELD_UNBUILT, AT(a.later), 1, 2, .fallback = "1" },\n'
            '    { "a.word", FIELD_WORD, 0, NOWHERE, .words = "none | much" },\n'
            '    { "a.lost", FIELD_WORD, 0, NOWHERE, .words = "none much" },\n'
            '};\n', encoding="utf-8")
        (root / "trainer/x.c").write_text(
            '#include "jobspec/jobspec.h"\nint f(struct jobspec *job)\n{\n    return job->a.read; /* a.unread */\n}\n', encoding="utf-8")
        found = [what.split()[0] for _, what in check(root)]
        if found != ["a.unread", "a.lost"]:
            print(f"keys.py: found {found} of what was planted")
            return 1
    return 0


def main():
    if sys.argv[1] == "--self":
        return self_check()
    found = check(sys.argv[1])
    for line, what in found:
        print(f"jobspec/schema.c:{line}: {what}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
