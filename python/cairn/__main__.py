"""python -m cairn: see `python -m cairn --help`."""
from __future__ import annotations

import argparse
import sys

from . import convert, errors
from .convert import ours

DESCRIPTION = """What the Python package cairn does from a shell: checkpoints to and from safetensors files.

Jobs are submitted, watched and paused by the program `cairn` (cairn --help). How a training program lets Cairn save its state:
python -c "import cairn; help(cairn)", and help(cairn.torch) where PyTorch is."""
SHOWN = 8  # names of what is left out


def _import(options: argparse.Namespace) -> int:
    try:
        done = convert.convert(options.source, options.dest, options.part)
    except (convert.Refused, OSError) as error:
        print(f"cairn: {error}", file=sys.stderr)
        return 1
    print(f"{options.dest}: {done.tensors} tensors, {done.bytes} bytes")
    if done.left_out:
        more = f" and {len(done.left_out) - SHOWN} more" if len(done.left_out) > SHOWN else ""
        print(f"left out, since no tensors: {', '.join(done.left_out[:SHOWN])}{more}")
    return 0


def _export(options: argparse.Namespace) -> int:
    try:
        tensors, size = ours.export(options.checkpoint, options.dest, options.part, options.rank)
    except (errors.Error, convert.Refused, OSError) as error:
        print(f"cairn: {error}", file=sys.stderr)
        return 1
    print(f"{options.dest}: {tensors} tensors, {size} bytes")
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cairn", formatter_class=argparse.RawDescriptionHelpFormatter,
                                     description=DESCRIPTION)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    taken = commands.add_parser("import", help="write the tensors of others' checkpoints to a safetensors file", description=convert.__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    taken.add_argument("source", metavar="SOURCE", help="a .pt or .pth file, a folder of DCP or of torch_checkpointing")
    taken.add_argument("dest", metavar="DEST", help="the safetensors file to write")
    taken.add_argument("--part", metavar="NAME", help="only what is below this name, without it")
    taken.set_defaults(run=_import)
    given = commands.add_parser("export", help="write the tensors of a checkpoint of Cairn's to a safetensors file", description=ours.__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("checkpoint", metavar="CHECKPOINT", help="the checkpoint's folder")
    given.add_argument("dest", metavar="DEST", help="the safetensors file to write")
    given.add_argument("--part", metavar="NAME", help="only what is below this name, without it")
    given.add_argument("--rank", metavar="N", type=int, default=0, help="whose own tensors, such as batch norm's buffers; 0 unless told")
    given.set_defaults(run=_export)
    options = parser.parse_args(arguments)
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
