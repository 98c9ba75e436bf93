#!/usr/bin/python3
"""The moves of a job's state machine (server/jobfsm/moves.h), and what shows its state, are complete.

    moves.py ROOT           prints "file:line: what" per finding; exit status 1 if there is any
    moves.py ROOT --write   writes the diagrams anew
    moves.py --self         plants one violation of each kind and checks that it is found

 - A comment that says "Moves, made from TABLE by tests/tidy/moves.py:" is followed by that table's rows.
 - A function that a row names makes a move of that kind somewhere in server/jobfsm.
 - Every member of struct fsm, fsm_rank and fsm_save is shown by `cairn debug job` (server/jobfsm/inspect/dump.c), or in the
   journal's part of it (persist.c), or is in SHOWN_OTHERWISE with its reason.
"""
import re
import sys
import tempfile
from pathlib import Path

HEADER = "server/jobfsm/moves.h"
SHOWN = ("server/jobfsm/inspect/dump.c", "server/jobfsm/persist.c")
KINDS = {"FSM_STATE_MOVES": r"FSM_MOVE\(", "FSM_GEN_MOVES": r"FSM_GEN_MOVED\(",
         "FSM_SAVE_MOVES": r"FSM_SAVE_(?:MOVE|SET_STATE|NEW)\(", "FSM_WORKER_MOVES": None}
MARK = re.compile(r"^( \* )Moves, made from (\w+) by tests/tidy/moves\.py:$")
SHOWN_OTHERWISE = {
    "token_next": "a secret", "token": "a secret", "token_before": "a secret",
    "recovered": "a copy of `recovery`, for one action",
    "phase_times": "times between counters, as a ring", "gen": "computed anew for the dump",
    "worker": "computed anew for the dump", "cost_us": "in the times of the checkpoint",
    "write_ms": "in the times of the checkpoint", "times": "in the row of the checkpoint",
    "reported_at": "in the times of the checkpoint", "place": "in `cairn why`, once it matters",
    "window": "what `timed` was", "since": "what `timed` was",
}


def macros_of(text):
    """{name: body} of the header's macros, with lines joined."""
    joined = text.replace("\\\n", " ")
    return {m[1]: m[2] for m in re.finditer(r"#define (\w+)\([^)]*\)\s+(.*)", joined)}


def states_of(word, macros):
    found = []
    for part in word.split("|"):
        part = part.strip().strip("()")
        one = re.match(r"B\((\w+)", part)
        group = re.match(r"(FSM_\w+)\(B", part)
        if one:
            found.append(one[1])
        elif group:
            found += states_of(macros[group[1]].strip().strip("()") + ")", macros)
    return found


def rows_of(table, macros):
    rows = []
    for m in re.finditer(r"X\((.*?), (\w+), (\w+),\s+\"([^\"]*)\"\)", macros[table]):
        rows.append((states_of(m[1], macros), m[2], m[3], m[4]))
    return rows


def diagram(rows):
    lines = []
    for froms, to, function, remark in rows:
        left = ", ".join(froms)
        by = "" if function == "any" else f" [{function}]"
        line = f" *   {left} -> {to}{by}: {remark}"
        if len(line) > 100:
            lines.append(f" *   {left}")
            line = f" *       -> {to}{by}: {remark}"
        lines.append(line)
    return lines


def with_diagrams(text, macros):
    out, skip = [], False
    for line in text.split("\n"):
        if skip and (line.startswith(" *   ") or line == " *"):
            continue
        if skip and line != " */":
            out.append(" *")
        skip = False
        out.append(line)
        mark = MARK.match(line)
        if mark and mark[2] in macros:
            out += [" *"] + diagram(rows_of(mark[2], macros))
            skip = True
    return "\n".join(out)


def check_diagrams(root, macros, write):
    found = []
    for path in sorted(Path(root, "server/jobfsm").rglob("*.[ch]")):
        text = path.read_text()
        made = with_diagrams(text, macros)
        if made != text and write:
            path.write_text(made)
        elif made != text:
            found.append(f"{path.relative_to(root)}:1: its diagram isn't its table: moves.py . --write makes it anew")
    return found


def check_functions(root, macros):
    sources = [p.read_text() for p in Path(root, "server/jobfsm").rglob("*.c")]
    bodies = {}
    for text in sources:
        for m in re.finditer(r"^\S.*?\b(\w+)\([^;{]*\)\n\{\n(.*?)^\}", text, re.M | re.S):
            bodies[m[1]] = m[2]
    found = []
    for table, call in KINDS.items():
        for _, to, function, _ in rows_of(table, macros) if call and table in macros else []:
            if not re.search(call, bodies.get(function, "")):
                found.append(f"{HEADER}:1: {table}: {function} doesn't make a move (to {to})")
    return found


def members_of(text, struct):
    body = re.search(r"^struct " + struct + r" \{\n(.*?)^\};", text, re.M | re.S)[1]
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
    nested = re.search(r"struct \w+ \{(.*?)\} (\w+);", body, re.S)
    if nested:
        body = body.replace(nested[0], f"int {nested[2]};")
    names = []
    for line in body.split(";"):
        line = re.sub(r"\[[^\]]*\]", "", line.strip())
        if line:
            first, *more = line.split(",")
            names += [re.findall(r"\w+", part)[-1] for part in [first] + more]
    return names


def check_dump(root):
    shown = "".join(Path(root, name).read_text() for name in SHOWN)
    found = []
    for name, struct in (("jobfsm.h", "fsm"), ("parts.h", "fsm_rank"), ("parts.h", "fsm_save")):
        text = Path(root, "server/jobfsm", name).read_text()
        for member in members_of(text, struct):
            if member not in SHOWN_OTHERWISE and not re.search(r"\b" + member + r"\b", shown):
                found.append(f"server/jobfsm/{name}:1: {struct}.{member}: no `cairn debug job` shows it")
    return found


def check(root, write=False):
    macros = macros_of(Path(root, HEADER).read_text())
    return check_diagrams(root, macros, write) + check_functions(root, macros) + check_dump(root)


def plant():
    """One violation of each kind in a copy of the folder: each has to be found."""
    own = Path(__file__).resolve().parents[2]
    plants = {
        "diagram": ("server/jobfsm/jobfsm.h", "slots were found", "slots were lost"),
        "function": (HEADER, "PLACING, fsm_on_placed", "PLACING, fsm_on_hello"),
        "dump": ("server/jobfsm/jobfsm.h", "    bool probing;", "    bool probing;\n    bool not_shown;"),
    }
    missed = []
    for kind, (name, was, becomes) in plants.items():
        with tempfile.TemporaryDirectory() as folder:
            for path in (own / "server/jobfsm").rglob("*.[ch]"):
                to = Path(folder, path.relative_to(own))
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_text(path.read_text())
            file = Path(folder, name)
            text = file.read_text()
            if was not in text or check(folder):
                missed.append(f"{kind}: nothing to plant it in, or findings before")
            file.write_text(text.replace(was, becomes, 1))
            if not check(folder):
                missed.append(f"{kind}: not found")
    return missed


def main():
    if "--self" in sys.argv:
        findings = plant()
    else:
        findings = check(sys.argv[1], "--write" in sys.argv)
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
