#!/usr/bin/python3
"""The tables of offsets in docs/format.md and docs/memory.md are those of the structs in the headers.

    layout.py ROOT           prints what differs; exit status 1 if anything does
    layout.py --self ROOT    wants a finding for each number of the tables that is changed

format.md: every row is a field, with its bytes. memory.md: every row begins at a field, and every offset that is
asserted has a row. What either tells of a struct's size is right.
"""
import re
import sys
from pathlib import Path

STRUCTS = ("disk_scalars", "disk_header", "disk_chunk", "disk_footer", "disk_buffer", "disk_reference", "disk_tensor",
           "disk_blob", "disk_trailer", "place_areas", "place_area", "wire_entry",
           "place_blob")  # in the order of format.md's tables
HEADERS = ("common/limits.h", "checkpoint/checkpoint.h", "checkpoint/format/disk.h", "session/copies/copy_file.h",
           "library/cairn.h", "library/wire/wire.h", "library/wire/place.h")
SIZES = {"uint8_t": 1, "char": 1, "uint16_t": 2, "uint32_t": 4, "uint64_t": 8, "double": 8}
ROW = re.compile(r"^\| (\d+) \|(?: ([\d× ]+)(?: each)? \|)?", re.M)


def structs_of(source):
    """{struct: ([(offset, bytes) of each field], size)}"""
    numbers = dict(re.findall(r"#define (\w+)\s+(\d+)u?\b", source))
    found = {"ckpt_hash": ([(0, 16)], 16)}
    for name, body in re.findall(r"struct ((?:disk|copy|place|wire)_\w+) \{\n(.*?)\n\};", source, re.S):
        fields, at = [], 0
        for kind, names in re.findall(r"^\s+((?:struct )?\w+) ([\w\[\], ]+);", body, re.M):
            one = SIZES.get(kind) or found.get(kind[7:], ([], 0))[1]
            for count in re.findall(r"\w+(?:\[(\w+)\])?", names):
                at += -at % SIZES.get(kind, 1)
                fields.append((at, one * int(numbers.get(count, count) or 1)))
                at += fields[-1][1]
        found[name] = (fields, at)
    return found


def tables_of(text):
    """[[(offset, bytes; 0: not told)] of each table whose first row is at 0]"""
    blocks = [ROW.findall(block) for block in re.findall(r"(?:^\|.*\n)+", text, re.M)]
    product = lambda cell: int.__mul__(*map(int, cell.split("×"))) if "×" in cell else int(cell or 0)
    return [[(int(at), product(cell)) for at, cell in rows] for rows in blocks if len(rows) > 1 and rows[0][0] == "0"]


def check(source, form, memory):
    structs = structs_of(source)
    tables = [table for table in tables_of(form) if table[0][1]]
    if len(tables) != len(STRUCTS):
        yield f"format.md: {len(tables)} tables of fields, not {len(STRUCTS)}"
    for name, table in zip(STRUCTS, tables):
        if [row for row in table if row[0] < structs[name][1]] != structs[name][0]:
            yield f"format.md: not as struct {name}: {structs[name][0]}"
    seal, head, extent = tables_of(memory)[-3:]
    for name, table in (("copy_seal", seal), ("copy_head", head), ("copy_extent", extent)):
        told, fields = {at for at, _ in table}, {at for at, _ in structs[name][0]}
        asserted = {int(at) for at in re.findall(rf"offsetof\(struct {name}, \w+\) == (\d+)", source)}
        if not asserted <= told <= fields:
            yield f"memory.md: struct {name} has fields at {sorted(fields)}, the table at {sorted(told)}"
    sizes = re.findall(r"`(?:struct )?((?:disk|place|wire)_\w+)`(?: \||,) (\d+)", form)
    sizes += [("copy_" + name, size) for name, size in
              re.findall(r"(seal|head|buffer|blob|extent)s?(?:,| of) (\d+) bytes", memory[memory.rindex("## Bytes"):])]
    for name, size in sizes:
        if structs[name][1] != int(size):
            yield f"struct {name} has {structs[name][1]} bytes, not {size}"


def self_test(source, form, memory):
    begin = memory.rindex("| seal | field |")
    changed = missed = 0
    for which, pattern in ((0, r"^\| (\d+) \| [1-9][\d× ]* \|"), (0, r"`(?:struct )?(?:disk|place|wire)_\w+`(?: \||,) (\d+)"),
                           (1, r"^\| (\d+) \|"), (1, r"of (\d+) bytes:")):
        for at in re.finditer(pattern, (form, memory)[which], re.M):
            if which == 1 and at.start() < begin:
                continue
            texts = [form, memory]
            texts[which] = texts[which][:at.start(1)] + str(int(at[1]) + 1) + texts[which][at.end(1):]
            changed, missed = changed + 1, missed + (not list(check(source, *texts)))
    print(f"{changed} numbers changed one by one, {missed} not found")
    return 1 if missed or changed < 90 else 0


def main():
    root = Path(sys.argv[-1])
    source = "\n".join((root / name).read_text(encoding="utf-8") for name in HEADERS)
    texts = [(root / name).read_text(encoding="utf-8") for name in ("docs/format.md", "docs/memory.md")]
    if sys.argv[1] == "--self":
        return self_test(source, *texts)
    findings = list(check(source, *texts))
    print(*findings, sep="\n")
    return 1 if findings else 0


sys.exit(main())
