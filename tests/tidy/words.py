#!/usr/bin/python3
"""The table that rules the words: docs/glossary.md is made from it, and words that it replaced stay away.

    words.py ROOT           prints "file:line: what" per finding; exit status 1 if there is any
    words.py ROOT --write   writes docs/glossary.md
    words.py --self         plants one violation of each kind and checks that it is found

tests/tidy/words.tsv has a row per term: section, word, the field's word, meaning, and what the term replaces: identifiers
(regular expressions of whole names, separated by ';') and prose (the same, in comments and documents). A term has one row.
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

CODE = (".c", ".h", ".cu", ".cuh", ".cc")
HISTORY = ("docs/adr/", "CHANGELOG.md")  # they tell what was, in the words of then
TABLE = "tests/tidy/words.tsv"
GLOSSARY = "docs/glossary.md"
HIDDEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
OPENING = """# Glossary

One word, one meaning, in code, comments, messages and documents. A word that isn't here means what it means elsewhere in the
field. This page is made from `tests/tidy/words.tsv` by `tests/tidy/words.py . --write`, which also refuses what a word replaced.
"""
CLOSING = """
**Whose names are whose.** An exported name begins with its folder (`journal_`, `session_`, `agent_`), its subsystem (`ckpt_`, `s3_`,
`cpu_`, `cuda_`, `fsm_`, `coord_`) or its file (`peers_`, `reason_`). A file-local name that stands in several files begins with what
its file is about. Units come last (`wait_ms`, `cost_us`, `size_bytes`). `_max` is a bound, `_count` a number of things, and `out_`
what a call fills in.
"""


def rows_of(text):
    lines = text.splitlines()[1:]
    return [dict(zip(("section", "word", "field", "meaning", "identifiers", "prose"), line.split("\t"))) for line in lines]


def glossary(rows):
    parts, section = [OPENING], None
    for row in rows:
        if row["section"] != section:
            section = row["section"]
            parts.append(f"\n**{section}**\n\n| word | in the field | meaning |\n| --- | --- | --- |\n")
        parts.append(f"| {row['word']} | {row['field']} | {row['meaning']} |\n")
    return "".join(parts) + CLOSING


def banned(rows, column):
    """(expression, the word to use) of each name that a row replaces"""
    return [(re.compile(rf"\b(?:{old})\b"), row["word"]) for row in rows for old in row[column].split(";") if old]


def blank(match):
    return re.sub(r"[^\n]", " ", match.group())


def findings(root, files):
    table = (root / TABLE).read_text(encoding="utf-8")
    rows = rows_of(table)
    seen = set()
    for number, row in enumerate(rows, 2):
        if len(row) != 6:
            yield f"{TABLE}:{number}: not six columns"
            return
        for word in row["word"].split(", "):
            if word in seen:
                yield f"{TABLE}:{number}: {word} has a row already"
            seen.add(word)
    if (root / GLOSSARY).read_text(encoding="utf-8") != glossary(rows):
        yield f"{GLOSSARY}: not what the table says: tests/tidy/words.py . --write"
    names, prose = banned(rows, "identifiers"), banned(rows, "prose")
    for name in files:
        if name.startswith(HISTORY) or not name.endswith(CODE + (".md",)):
            continue
        text = (root / name).read_text(encoding="utf-8")
        code = HIDDEN.sub(blank, text) if name.endswith(CODE) else text
        for where, bans in ((code, names), (text, prose)):
            for number, line in enumerate(where.splitlines(), 1):
                for old, word in bans:
                    hit = old.search(line)
                    if hit:
                        yield f"{name}:{number}: {hit.group()}: the word is {word}"


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "docs").mkdir()
        (root / "tests/tidy").mkdir(parents=True)
        head = "section\tword\tfield\tmeaning\tidentifiers\tprose\n"
        good = head + "A\tfoo\tfield\tA thing.\told_\\w+\tancient\nA\tbar\tfield\tAnother.\t\t\n"
        (root / TABLE).write_text(good, encoding="utf-8")
        (root / GLOSSARY).write_text(glossary(rows_of(good)), encoding="utf-8")
        (root / "a.c").write_text('int new_x; /* as old_x was */ const char *t = "old_y";\n', encoding="utf-8")
        assert not list(findings(root, ["a.c"])), list(findings(root, ["a.c"]))
        (root / "a.c").write_text("int old_x; /* ancient */\n", encoding="utf-8")
        assert len(list(findings(root, ["a.c"]))) == 2
        (root / "b.md").write_text("Calls `old_x()`.\n", encoding="utf-8")
        assert len(list(findings(root, ["b.md"]))) == 1
        (root / TABLE).write_text(good + "B\tbar\tfield\tTwice.\t\t\n", encoding="utf-8")
        assert len(list(findings(root, []))) == 2  # a second row, and a page that lacks it
        (root / TABLE).write_text(head + "A\tfoo\n", encoding="utf-8")
        assert len(list(findings(root, []))) == 1
    return 0


def main():
    if sys.argv[1:] == ["--self"]:
        return self_test()
    root = Path(sys.argv[1])
    if sys.argv[2:] == ["--write"]:
        (root / GLOSSARY).write_text(glossary(rows_of((root / TABLE).read_text(encoding="utf-8"))), encoding="utf-8")
        return 0
    files = subprocess.run(["git", "-C", str(root), "ls-files"], check=True, capture_output=True, text=True).stdout.split("\n")
    found = list(findings(root, [name for name in files if (root / name).is_file()]))
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
