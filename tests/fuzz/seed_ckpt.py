#!/usr/bin/python3
"""Seeds of the checkpoint fuzzers, from the golden files.

    seed_ckpt.py GOLDEN OUT      writes OUT/shard/* and OUT/manifest/*
"""
import glob
import os
import sys


def main():
    golden, out = sys.argv[1:3]
    for kind, pattern in (("shard", "*.cairn"), ("manifest", "manifest.json")):
        os.makedirs(os.path.join(out, kind), exist_ok=True)
        files = sorted(glob.glob(os.path.join(golden, "**", pattern), recursive=True))
        for number, name in enumerate(files):
            with open(name, "rb") as file:
                data = file.read()
            if kind == "manifest":  # the fuzzer appends the tail itself
                data = data[: data.rindex(b',"xxh3_128":"')]
            for first in (b"\0", b"\1"):
                with open(os.path.join(out, kind, f"{number}-{first[0]}"), "wb") as file:
                    file.write(first + data)


main()
