"""What `cmake --install` puts in place is a whole Cairn: programs, the page, manual pages, completion."""
import subprocess
import urllib.error
import urllib.request

import pytest

import home
from home import BIN, Home

MODULE = "cairn-cuda.so"


@pytest.fixture(scope="module", name="prefix")
def fixture_prefix(tmp_path_factory):
    prefix = tmp_path_factory.mktemp("installed")
    subprocess.run(["cmake", "--install", BIN.parent, "--prefix", prefix], check=True, capture_output=True, text=True)
    return prefix


def test_each_program_is_there(prefix):
    built = {path.name for path in BIN.iterdir() if path.is_file() and path.name.startswith("cairn")} - {MODULE}
    assert {path.name for path in (prefix / "bin").iterdir()} == built
    assert (BIN / MODULE).exists() == (prefix / "lib/cairn" / MODULE).exists()


def test_each_program_that_people_start_has_a_manual_page(prefix):
    pages = {path.name for path in (prefix / "share/man").rglob("*.[18]")}
    assert pages == {"cairn.1", "cairnd.8", "cairn-agent.8", "cairn-observer.8", "cairn-trainer.8"}
    for page in (prefix / "share/man").rglob("*.[18]"):
        shown = subprocess.run(["groff", "-man", "-Tascii", "-ww", "-P-cbou", page], capture_output=True, text=True, check=True)
        assert "SYNOPSIS" in shown.stdout and not shown.stderr, (page, shown.stderr)


def test_completion_is_where_shells_look(prefix):
    share = prefix / "share"
    found = subprocess.run(["bash", "-c", f"source {share}/bash-completion/completions/cairn && complete -p cairn"],
                           capture_output=True, text=True, check=True)
    assert "cairn" in found.stdout
    assert (share / "zsh/vendor-completions/_cairn").exists() and (share / "fish/vendor_completions.d/cairn.fish").exists()


def test_a_job_trains_and_the_page_shows_it(prefix, monkeypatch):
    monkeypatch.setattr(home, "BIN", prefix / "bin")
    with Home() as place:
        job = place.submit()
        place.wait_state(job, "SUCCEEDED")
        page = (place.home / "page").read_text(encoding="ascii").strip()
        with urllib.request.urlopen(page, timeout=20) as reply:
            assert reply.status == 200 and b"<html" in reply.read()
        token = (place.home / "observer/token").read_text(encoding="ascii").strip()
        asked = urllib.request.Request(f"{page}api/v1/jobs/{job}", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(asked, timeout=20) as reply:
            assert b"SUCCEEDED" in reply.read()
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"{page}api/v1/jobs/{job}", timeout=20)
