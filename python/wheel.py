#!/usr/bin/python3
"""Makes the wheel of the package: a zip of it with its metadata. Needs no network and no other package.

    wheel.py PACKAGE LICENSE WHEEL     PACKAGE: the folder that has cairn/; WHEEL: the file, whose name says version and tag

The same files give the same bytes: dates are fixed, names are in order. The extension is stripped of what debuggers want.
"""
import base64
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

METADATA = """\
Metadata-Version: 2.1
Name: cairn
Version: {version}
Summary: Training that goes on after failures, with the same bits: PyTorch programs under Cairn
License: Apache-2.0
Requires-Python: >=3.11
Classifier: License :: OSI Approved :: Apache Software License
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

{description}
"""
WHEEL = "Wheel-Version: 1.0\nGenerator: cairn\nRoot-Is-Purelib: false\nTag: {tag}\n"
EXTENSION = "cairn/_cairn.abi3.so"


def stripped(path):
    """The bytes of the extension without symbols that nobody needs to run it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copy(path, folder)
        subprocess.run(["strip", "--strip-unneeded", copy], check=True)
        return Path(copy).read_bytes()


def files_of(package):
    """{name in the wheel: bytes}"""
    found = {}
    for path in package.glob("cairn/**/*"):
        name = path.relative_to(package).as_posix()
        if path.suffix in (".py", ".pyi", ".typed") or path.name == "py.typed" or name == EXTENSION:
            found[name] = stripped(path) if name == EXTENSION else path.read_bytes()
    if EXTENSION not in found:
        raise SystemExit(f"{package} has no {EXTENSION}: build the target cairn_python")
    return found


def description(source):
    """The docstring of the package."""
    return source.decode("utf-8").split('"""')[1].strip()


def record_line(name, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode("ascii")
    return f"{name},sha256={digest},{len(data)}\n"


def main(package, licence, wheel):
    name, version, *tag = wheel.stem.split("-")
    files = files_of(package)
    info = f"{name}-{version}.dist-info"
    files[f"{info}/METADATA"] = METADATA.format(version=version, description=description(files["cairn/__init__.py"])).encode("utf-8")
    files[f"{info}/WHEEL"] = WHEEL.format(tag="-".join(tag)).encode("ascii")
    files[f"{info}/LICENSE"] = licence.read_bytes()
    record = "".join(record_line(each, files[each]) for each in sorted(files)) + f"{info}/RECORD,,\n"
    wheel.parent.mkdir(parents=True, exist_ok=True)
    made = wheel.with_suffix(".new")
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as out:
        for each in sorted(files) + [f"{info}/RECORD"]:
            entry = zipfile.ZipInfo(each, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if each == EXTENSION else 0o644) << 16
            out.writestr(entry, record if each.endswith("/RECORD") else files[each])
    made.replace(wheel)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    main(*map(Path, sys.argv[1:]))
