"""The page as a file: small, whole by itself, its policy the one of its scripts. Needs no browser."""
import base64
import hashlib
import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HTML = Path(os.environ["CAIRN_PAGE_HTML"]).read_text(encoding="utf-8")
CSP = Path(os.environ["CAIRN_PAGE_CSP"]).read_text(encoding="utf-8")
SOURCES = sorted(Path(ROOT, "observer", "page").glob("*.js"))


def test_it_is_small():
    assert len(HTML.encode()) < 300 * 1000


def test_it_asks_nobody_else():
    tags = re.sub(r"(<script>).*?(</script>)|(<style>).*?(</style>)", "", HTML, flags=re.S)
    assert re.findall(r"<(?:script|iframe|img|object|embed)\b", tags) == []
    links = re.findall(r"""(?:href|src)=["']([^"']*)""", tags)
    assert links and all(link.startswith(("#", "data:")) for link in links)
    assert re.findall(r"url\(|@import", HTML) == []
    assert "sourceMappingURL" not in HTML
    # A licence and the names of XML's spaces are no loads.
    addresses = set(re.findall(r"""https?://[^\s"'`)]+""", HTML))
    assert addresses == {"https://github.com/danvk/dygraphs/blob/v2.2.1/LICENSE.txt", "http://www.w3.org/2000/svg"}


def test_the_policy_names_each_script():
    scripts = re.findall(r"<script>(.*?)</script>", HTML, flags=re.S)
    assert len(scripts) == len(SOURCES) + 1
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in CSP
    assert CSP.count("'sha256-") == len(scripts)
    assert "default-src 'none'" in CSP and "unsafe-eval" not in CSP
    assert "unsafe-inline" not in CSP.split("script-src")[1].split(";")[0]


def test_its_scripts_are_as_other_sources():
    for path in SOURCES:
        lines = path.read_text(encoding="utf-8").split("\n")
        assert len(lines) <= 600 and max(map(len, lines)) <= 100, path.name
        assert "'use strict';" in lines, path.name
        # Whatever a server says goes in as text.
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "\t"):
            assert not any(word in line for line in lines), f"{path.name}: {word}"
