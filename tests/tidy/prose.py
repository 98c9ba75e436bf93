#!/usr/bin/python3
"""Documents are made of short sentences, and a comment names what it speaks of.

    prose.py ROOT          prints "file:line: what" per finding; exit status 1 if there is any
    prose.py --all ROOT    also prints what is exempt, and each comment that lacks a subject
    prose.py --self        plants one violation of each kind and checks that it is found

 - No sentence of docs/, docs/adr/ or a Markdown file of the root has more than WORDS_MAX words. A paragraph, an item
   of a list and a cell of a table are texts of their own. Blocks of code, headings and targets of links don't count;
   `code` is one word. A full stop, a question mark or an exclamation mark ends a sentence; a colon doesn't.
 - Of the comments of a top folder that begin a line, less than SHARE_MAX open with a word that stands for a subject.
 - What is in EXEMPT may fail either rule, for as long as it does.
"""
import re
import sys
import tempfile
from pathlib import Path

WORDS_MAX = 30
SHARE_MAX = 0.01
EXEMPT = set()
DOCUMENTS = ("*.md", "docs/*.md", "docs/adr/*.md")
SOURCES = (".c", ".h", ".cc", ".cu", ".cuh")
ABBREVIATIONS = ("e.g.", "i.e.", "etc.", "vs.", "cf.", "approx.", "incl.", "resp.")
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.S)
LINK = re.compile(r"!?\[([^\[\]]*)\](\([^()]*\)|\[[^\[\]]*\])")
ITEM = re.compile(r"\s*([-*+]|\d{1,2}[.)])\s+")
BLOCK = re.compile(r"^[\s>]*(```|~~~).*?^[\s>]*\1.*?$", re.S | re.M)
NO_TEXT = re.compile(r"#+ |\s*$|\s*<!--|\[[^\]]+\]: |[\s|:-]+$")
END = re.compile(r"(?<!\.)(?!\.\.\.)[.!?]+[)\]\"'”’*_]*$")
COMMENT = re.compile(r"^[ \t]*(?:/\*[\s*]*|//+ ?)(.*)(?:\n[ \t]*//.*)*", re.M)  # lines of // are one
NO_SUBJECT = re.compile(r"(?:Its?|They|Their|Of|The same|Those|Who|Whose|Whom|Nor|As|Such)\b|…|\.\.\.")


def without_code(text):
    """The text with each `code` as one word, and links as their texts; lines stay where they are."""
    text = CODE.sub(lambda code: "code" + "\n" * code[0].count("\n"), text)
    return LINK.sub(lambda link: link[1] + "\n" * link[2].count("\n"), text)


def texts_of(markdown):
    """(line, text) of each paragraph, item of a list and cell of a table."""
    begin, lines = 0, []
    markdown = BLOCK.sub(lambda block: "\n" * block[0].count("\n"), markdown)
    for at, line in enumerate(markdown.split("\n") + [""], 1):
        line = re.sub(r"^(\s*>)+ ?", "", line)
        item, row, none = ITEM.match(line), line.lstrip().startswith("|"), NO_TEXT.match(line)
        if lines and (item or row or none):
            yield begin, "\n".join(lines)
            lines = []
        if row and not none:
            yield from ((at, cell) for cell in re.split(r"(?<!\\)\|", without_code(line)))
        elif not none:
            begin = begin if lines else at
            lines.append(line[item.end():] if item else line)


def sentences_of(text):
    """(lines from the text's first one, words) of each sentence."""
    words, begin = [], 0
    text = without_code(text)
    for token in re.finditer(r"\S+", text):
        if re.search(r"\w", token[0]):
            begin = begin if words else text.count("\n", 0, token.start())
            words.append(token[0])
        if END.search(token[0]) and token[0].lstrip("(") not in ABBREVIATIONS:
            yield begin, words
            words = []
    yield begin, words


def check_document(name, markdown):
    """A finding per sentence that is too long."""
    for line, text in texts_of(markdown):
        for below, words in sentences_of(text):
            if len(words) > WORDS_MAX:
                yield f"{name}:{line + below}: a sentence of {len(words)} words: {' '.join(words[:8])} …"


def check_folder(root, folder, show):
    """A finding where too many comments of a top folder lack a subject; with show also one for each of them."""
    count, found = 0, []
    for path in sorted(path for path in Path(root, folder).rglob("*") if path.suffix in SOURCES):
        text = path.read_text(encoding="utf-8")
        for comment in COMMENT.finditer(text):
            count += 1
            if NO_SUBJECT.match(comment[1]):
                line = text.count("\n", 0, comment.start(1)) + 1
                found.append(f"{path.relative_to(root)}:{line}: a comment without a subject: {comment[1]}")
    yield from found if show else ()
    if len(found) >= SHARE_MAX * count > 0:
        yield f"{folder}/: {len(found)} of {count} comments don't name their subject (--all shows them)"


def check_tree(root, exempt, show=False):
    """All findings but those of what is exempt; what is exempt without need is a finding."""
    found = {}
    for name in sorted(str(path.relative_to(root)) for like in DOCUMENTS for path in Path(root).glob(like)):
        found[name] = list(check_document(name, Path(root, name).read_text(encoding="utf-8")))
    for folder in sorted(path.name for path in Path(root).iterdir() if path.is_dir()):
        if not folder.startswith((".", "build")):
            found[folder + "/"] = list(check_folder(root, folder, show))
    for name, findings in found.items():
        if show or name not in exempt:
            yield from findings
    for name in sorted(exempt):
        if not found.get(name):
            yield f"{name}: passes, so it needs no exemption: take it off the list in prose.py"


def self_test():
    """Each planted text is found, or not found, as its third column says."""
    words = lambda count: "word " * (count - 1) + "word"
    planted = {
        "README.md": (f"# {words(40)}\n\nShort. {words(20)}\n{words(11)}.", ":3: a sentence of 31 words"),
        "docs/cell.md": (f"| a | b |\n| --- | --- |\n| {words(30)} | {words(31)} |", ":3: a sentence of 31 words"),
        "docs/item.md": (f"1. {words(30)}\n2. {words(31)}\n", ":2: a sentence of 31 words"),
        "docs/adr/semicolon.md": (f"{words(15)}, e.g. {words(15)}: {words(5)}; {words(5)}", ":1: a sentence of 41 words"),
        "docs/good.md": (f"```\n{words(40)}\n```\n`{words(40)}`, [{words(20)}](to) 1.2 {words(8)}! {words(30)}", ""),
        "docs/mended.md": ("Short.", "docs/mended.md: passes"),
        "docs/worse.md": (words(31), ""),
        "bad/a.c": ("/* Adds. */\n    /* Its sum. */\nint a; /* Of a. */\n// Adds.\n// It does.\n", "bad/: 1 of 3"),
        "good/b.h": ("/* Item. */\n" * 100 + "/*\n * \u2026 of it */\n", ""),
    }
    with tempfile.TemporaryDirectory() as root:
        for path, (text, _) in planted.items():
            Path(root, path).parent.mkdir(parents=True, exist_ok=True)
            Path(root, path).write_text(text + "\n", encoding="utf-8")
        found = list(check_tree(root, {"docs/mended.md", "docs/worse.md"}))
        every = list(check_tree(root, set(), show=True))
    wants = [want if want[0] != ":" else path + want for path, (_, want) in planted.items() if want]
    missed = [want for want in wants if not any(want in f for f in found)]
    missed += [want for want in ("bad/a.c:2:", "good/b.h:102:", "docs/worse.md:1:") if not any(want in f for f in every)]
    print(*(f"not found: {want}" for want in missed), *found[len(wants):], sep="\n")
    print(f"{len(wants)} planted violations")
    return 1 if missed or len(found) != len(wants) else 0


def main():
    if sys.argv[1:] == ["--self"]:
        return self_test()
    findings = list(check_tree(sys.argv[-1], EXEMPT, sys.argv[1] == "--all"))
    print(*findings, sep="\n")
    return 1 if findings else 0


sys.exit(main())
