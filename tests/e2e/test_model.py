"""Models of one's own (docs/model.md): graphs and libraries train, die and go on as the models by name do; a library that is
wrong is told as such."""
import json
import subprocess
from pathlib import Path

import pytest

from elastic import held_home, paced, recoveries
from home import BIN, ROOT, Home, until

EXAMPLES = ROOT / "examples" / "model"
SMALL = {"train__duration": "40 steps", "train__global_batch": 16, "checkpoint__every": "8 steps"}
LIBRARY = """\
name: library
model: {library: %s, input: [1, 12, 12]}
data: {train: {format: synthetic, samples: 640}}
train: {duration: 40 steps, global_batch: 16, lanes: 4, optimizer: {lr: 0.05, momentum: 0.9}}
"""
FC = """\
#include <signal.h>
#include <stdlib.h>
#include <cairn/model.h>
int cairn_model_make(struct cairn_model *model, const struct cairn_sample *sample)
{
    cairn_add(model, (struct cairn_node){ .op = "flatten" });
    %s
    cairn_add(model, (struct cairn_node){ .op = "linear", .name = "fc", .out = sample->classes });
    return 0;
}
"""


def compile_library(folder, source, out="model.so", flags=("-shared", "-fPIC")):
    """A library of this source against the public header, as an installed one is."""
    include = folder / "include" / "cairn"
    include.mkdir(parents=True, exist_ok=True)
    (include / "model.h").write_bytes((ROOT / "library" / "model.h").read_bytes())
    file = folder / f"{out}.c"
    file.write_text(source, encoding="utf-8")
    subprocess.run(["cc", *flags, f"-I{folder}/include", "-o", folder / out, file], check=True)
    return folder / out


def plan(job, *sets):
    args = [word for each in sets for word in ("--set", each)]
    return subprocess.run([BIN / "cairn-trainer", "--plan", job, *args], capture_output=True, text=True, check=False, timeout=120)


def quiet_digest(job, sets=()):
    """Of a run in one process, without a coordinator."""
    args = [word for key, value in sets for word in ("--set", f"{key.replace('__', '.')}={value}")]
    return subprocess.run([BIN / "cairn-trainer", "--local", job, "--digest", *args], capture_output=True, text=True, check=True,
                          timeout=120).stdout.strip()


def text_of(name, folder):
    if name != "library":
        return (EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8")
    return LIBRARY % compile_library(folder, (EXAMPLES / "model.c").read_text(encoding="utf-8"))


# What is trained

@pytest.mark.parametrize("name", ["cnn", "transformer", "llama", "vit", "library"])
def test_a_model_of_ones_own_has_the_same_bits_whatever_dies_and_however_many_workers(name, tmp_path):
    text = text_of(name, tmp_path)
    file = tmp_path / "job.yaml"
    file.write_text(text, encoding="utf-8")
    expected = quiet_digest(file, SMALL.items())
    with held_home("trainer.backward,rank=1,step=11,generation=1:kill", "trainer.forward,step=20:wait",
                   *paced(2, ms=100)) as home:
        job = home.submit(text, **SMALL, workers__count=2)
        home.wait_hit("trainer.forward", seconds=60)
        home.cairn("set", job, "workers.count=3")
        home.go("trainer.forward")
        assert home.digest(job) == expected
        assert len(recoveries(home, job)) == 2
        assert f"arch: {'library' if name == 'library' else 'graph'}" in home.show(job)["job_file"]


def test_a_graph_is_cut_into_stages_with_the_same_bits(tmp_path):
    """Its head is in another stage than the embedding whose weight it has."""
    text = text_of("transformer", tmp_path)
    file = tmp_path / "job.yaml"
    file.write_text(text, encoding="utf-8")
    sets = {"train__duration": "6 steps", "train__global_batch": 16}
    with Home() as home:
        job = home.submit(text, **sets, parallel__pipeline=2, workers__count=4)
        assert home.digest(job) == quiet_digest(file, sets.items())


@pytest.mark.parametrize("name", ["lenet", "gpt2"])
def test_a_model_by_name_and_its_graph_have_one_digest(name, tmp_path):
    sizes = {"lenet": "model={arch: lenet}",
             "gpt2": "model={arch: gpt2, layers: 2, heads: 2, width: 32, context: 16, vocab: 100}"}
    file = EXAMPLES / f"{name}.yaml"
    if name == "gpt2":
        script = (f"import sys; sys.path.insert(0, {str(EXAMPLES)!r}); import graphs; print(graphs.TOKENS.format("
                  "name='gpt2', batch=8, nodes='\\n'.join(graphs.gpt2(2, 2, 32, 100))))")
        made = subprocess.run(["/usr/bin/python3", "-B", "-c", script], capture_output=True, text=True, check=True).stdout
        file = tmp_path / "gpt2.yaml"
        file.write_text(made.replace("context: 1024", "context: 16"), encoding="utf-8")
    sets = [("train__duration", "6 steps")]
    assert quiet_digest(file, sets) == quiet_digest(file, [("model", sizes[name].partition("=")[2]), *sets])


def test_a_plan_shows_the_graph():
    done = plan(EXAMPLES / "cnn.yaml")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["5", "a", "batch_norm", "[16,", "28,", "28]", "32", "a.conv2", "+", "stem.bn"] in rows
    assert ["15", "fc", "linear", "[10]", "650", "-"] in rows


def test_parameters_have_the_names_of_their_nodes(tmp_path):
    with Home() as home:
        job = home.submit(text_of("transformer", tmp_path), train__duration="2 steps", train__global_batch=8)
        home.digest(job)
        home.cairn("ckpt", "export", job, "w.safetensors")
        data = (home.dir / "w.safetensors").read_bytes()
        header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
        assert header["tokens.weight"]["shape"] == [256, 48]
        assert header["places.weight"]["shape"] == [64, 48]
        assert header["0.wide.weight"]["shape"] == [96, 48]
        assert "head.weight" not in header and "0.wide.bias" not in header
        again = home.submit(text_of("transformer", tmp_path), name="again", train__duration="2 steps", train__global_batch=8,
                            model__weights=home.dir / "w.safetensors", train__optimizer__lr=0)
        home.digest(again)
        said = home.cairn("ckpt", "export", again, "same.safetensors")
        assert said.returncode == 0
        assert (home.dir / "same.safetensors").read_bytes()[8:].partition(b"}}")[2] == data[8:].partition(b"}}")[2]


# What a library can be

def wrong_libraries():
    return {
        "no-elf": (None, "it is no ELF file"),
        "a-program": (("-fPIE", "-pie"), "cannot dynamically load position-independent executable"),
        "an-object": (("-c",), "it is no shared library"),
        "another-machine": ("machine", "it is for another machine"),
        "unresolved": (FC % "extern int nobody_has_this(void); nobody_has_this();", "undefined symbol: nobody_has_this"),
        "no-function": ("int other(void) { return 0; }", "it has no symbol cairn_model_make"),
        "no-version": ("int cairn_model_make(void *m, void *s) { return m == s; }", "it has no symbol cairn_model_version"),
        "another-version": ("const unsigned cairn_model_version = 7; int cairn_model_make(void *m, void *s) { return m == s; }",
                            "it was built for version 7 of cairn/model.h, and this Cairn has 1"),
        "an-error": (FC % "return 3;", "its cairn_model_make returned 3"),
        "a-refusal": (FC % 'return cairn_refuse(model, "not today");', "model.so: not today"),
        "a-crash": (FC % "*(volatile int *)sample = *(volatile int *)0;", "it crashed: signal 11 (Segmentation fault)"),
        "an-abort": (FC % "abort();", "it crashed: signal 6 (Aborted)"),
        "an-exit": (FC % "exit(5);", "it ended its process with exit code 5"),
        "a-quiet-exit": (FC % "exit(0);", "it ended its process without a graph"),
        "no-op": (FC % "cairn_add(model, (struct cairn_node){ .out = 3 });", "a node has no op"),
        "no-such-node": (FC % 'cairn_add(model, (struct cairn_node){ .op = "relu", .from = 9 });',
                         "node 'relu-1' reads a node that isn't there"),
        "a-wrong-op": (FC % 'cairn_add(model, (struct cairn_node){ .op = "dense", .name = "d", .out = 4 });',
                       "there is no op 'dense'; did you mean 'linear'?"),
        "a-wrong-shape": (FC % 'cairn_add(model, (struct cairn_node){ .op = "conv2d", .name = "c", .out = 4, .kernel = 3 });',
                          "c: it takes images, [channels, height, width], but reads [144] of flatten-0"),
        "too-few-logits": ((FC % "").replace("sample->classes", "2"), "its last node makes 2 logits, but model.classes is 10"),
        "a-name-with-quotes": (FC % 'cairn_add(model, (struct cairn_node){ .op = "linear", .name = "a\\"}\\n- {x: y}", '
                                    '.out = 4 });', "a node can't have the name"),
        "too-many": (FC % 'for (int i = 0; i < 600; i++) cairn_add(model, (struct cairn_node){ .op = "relu" });',
                     "it has more nodes than a graph may have"),
    }


def make_wrong(folder, source):
    path = folder / "model.so"
    if source is None:
        path.write_text("no library, " * 20, encoding="utf-8")
    elif isinstance(source, tuple):
        compile_library(folder, "int main(void) { return 0; }", flags=source)
    elif source == "machine":
        data = bytearray(compile_library(folder, FC % "").read_bytes())
        data[18:20] = (243).to_bytes(2, "little")  # RISC-V
        path.write_bytes(data)
    else:
        compile_library(folder, source)
    return path


def test_a_library_that_is_wrong_is_told_as_such(tmp_path):
    for name, (source, expected) in wrong_libraries().items():
        folder = tmp_path / name
        folder.mkdir()
        path = make_wrong(folder, source)
        (folder / "job.yaml").write_text(LIBRARY % path, encoding="utf-8")
        done = plan(folder / "job.yaml")
        assert done.returncode != 0 and f"model.library: {path}: " in done.stderr, (name, done.stderr)
        assert expected in done.stderr, (name, done.stderr)


def test_a_library_may_print_and_its_output_is_no_graph(tmp_path):
    library = compile_library(tmp_path, "#include <stdio.h>\n" + FC % 'puts("hello"); printf("- {op: relu}");')
    (tmp_path / "job.yaml").write_text(LIBRARY % library, encoding="utf-8")
    done = plan(tmp_path / "job.yaml")
    assert done.returncode == 0 and "hello" not in done.stdout and "hello" in done.stderr, done.stderr


def test_a_library_that_is_missing_is_told_where_it_is_named(tmp_path):
    with Home() as home:
        path = home.dir / "job.yaml"
        path.write_text(LIBRARY % (tmp_path / "none.so"), encoding="utf-8")
        said = home.cairn("submit", path, check=False)
        assert said.returncode == 2 and "none.so: there is no such file" in said.stderr + said.stdout, said


def reason_of(home, job):
    shown = home.try_show(job)
    return " ".join(event["message"] for event in shown["events"]) if shown else ""


def test_a_job_that_goes_on_with_another_library_is_refused(tmp_path):
    source = (EXAMPLES / "model.c").read_text(encoding="utf-8")
    library = compile_library(tmp_path, source)
    with Home(faults="trainer.forward,step=20:wait") as home:
        job = home.submit(LIBRARY % library, checkpoint__every="5 steps", workers__count=2)
        home.wait_hit("trainer.forward")
        home.cairn("pause", job)
        home.go("trainer.forward")
        home.wait_state(job, "PAUSED")
        first = Path(library).read_bytes()
        compile_library(tmp_path, source.replace("#define WIDTH 16", "#define WIDTH 8"), "other.so").rename(library)
        home.cairn("resume", job)
        until(lambda: "it is not the library that the job began with" in reason_of(home, job), 60,
              "the other library is refused")
        (tmp_path / "first.so").write_bytes(first)
        (tmp_path / "first.so").rename(library)
        home.wait_state(job, "SUCCEEDED", seconds=120)
