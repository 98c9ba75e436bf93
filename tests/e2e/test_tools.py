"""ckpt diff, scrub, export, import: by JOB, and by folders without a coordinator. Files that leave
are read by other people's libraries where CAIRN_PEER names a Python environment that has them."""
import array
import json
import os
import random
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from home import BIN, Home, until

CONFIG = {"layers": 2, "heads": 2, "width": 64, "context": 32, "vocab": 256}
GPT = """\
name: gpt
model: {arch: gpt2, layers: 2, heads: 2, width: 64, context: 32}
data:
  train: {format: text, path: train.txt, tokenizer: bytes}
  eval: {format: text, path: eval.txt, tokenizer: bytes}
train:
  duration: 400 steps
  global_batch: 8
  lanes: 4
  optimizer: {name: adamw, lr: 2e-3, weight_decay: 0.1}
  seed: 3
workers: {count: 2}
checkpoint: {every: 200 steps, keep: {last: 3}, store: checkpoints/}
"""
RESNET = """\
name: resnet
model: {arch: resnet18, classes: 10}
data:
  train: {format: idx, images: images, labels: labels}
  eval: {format: idx, images: images, labels: labels}
train:
  duration: 4 steps
  global_batch: 8
  lanes: 4
  optimizer: {name: sgd, lr: 0.02, momentum: 0.9}
  seed: 3
workers: {count: 2}
checkpoint: {every: 2 steps, keep: {last: 2}, store: checkpoints/}
"""
CONV1D = re.compile(r"\.(attn\.c_attn|attn\.c_proj|mlp\.c_fc|mlp\.c_proj)\.weight$")
# One step that changes nothing: its evaluation is that of the weights it began with.
STILL = ["--set", "train.duration=1 steps", "--set", "train.optimizer.lr=0",
         "--set", "train.optimizer.weight_decay=0"]


def read_safetensors(path):
    """(metadata, {name: (dtype, shape, bytes)}); the rules of the format are asserted."""
    data = Path(path).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8:8 + size]), data[8 + size:]
    metadata = header.pop("__metadata__", {})
    assert (8 + size) % 8 == 0 and data[8:9] == b"{"
    widths = {"F32": 4, "BF16": 2, "F16": 2, "I64": 8}
    end, tensors = 0, {}
    for name, about in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        first, last = about["data_offsets"]
        count = 1
        for dim in about["shape"]:
            count *= dim
        assert first == end and last - first == count * widths[about["dtype"]], name
        tensors[name] = (about["dtype"], about["shape"], body[first:last])
        end = last
    assert end == len(body)
    return metadata, tensors


def transposed(shape, data):
    values = array.array("f", data)
    rows, columns = shape
    out = array.array("f")
    for column in range(columns):
        out.extend(values[column::columns])
    return [columns, rows], out.tobytes()


def write_data(folder):
    words = [f"{a}{b} " for a in ("the", "a", "no", "every") for b in (" ship", " storm", " star", "where")]
    text = "".join(words[i * i % 13] + words[i * 7 % 16] for i in range(900))
    (folder / "train.txt").write_text(text, encoding="utf-8")
    (folder / "eval.txt").write_text(text[100:2500], encoding="utf-8")
    rng = random.Random(1)
    (folder / "images").write_bytes(struct.pack(">IIII", 0x803, 40, 28, 28) + rng.randbytes(40 * 784))
    (folder / "labels").write_bytes(struct.pack(">II", 0x801, 40) + bytes(rng.randrange(10) for _ in range(40)))
    (folder / "gpt.yaml").write_text(GPT, encoding="utf-8")
    (folder / "resnet.yaml").write_text(RESNET, encoding="utf-8")


@pytest.fixture(scope="module", name="home")
def one_home():
    with Home(env={"CAIRN_HANG_MS": "20000"}) as home:
        write_data(home.dir)
        yield home


@pytest.fixture(scope="module", name="gpt")
def gpt_job(home):
    job = home.cairn("submit", "gpt.yaml", "-o", "name").stdout.strip()
    home.digest(job, 120)
    return job


@pytest.fixture(scope="module", name="resnet")
def resnet_job(home):
    job = home.cairn("submit", "resnet.yaml", "-o", "name").stdout.strip()
    home.digest(job, 200)
    return job


@pytest.fixture(name="alone")
def without_coordinator(home):
    """The command line where no coordinator is: in another home."""
    env = dict(home.env, CAIRN_HOME=str(home.dir / "nobody"))

    def call(*args, check=True):
        done = subprocess.run([BIN / "cairn", *map(str, args)], env=env, cwd=home.dir, timeout=60,
                              capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done
    return call


def folder_of(home, job, step=None):
    shown = json.loads(home.cairn("ckpt", "ls", job, "-o", "json").stdout)
    return Path(next(c["path"] for c in shown if step in (None, c["step"])))


def local(home, *args):
    """(evaluation loss, digest) of a job trained in one process."""
    done = subprocess.run([BIN / "cairn-trainer", "--local", *map(str, args)], env=home.env, cwd=home.dir,
                          timeout=200, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return (float(re.findall(r"evaluation loss (\S+)", done.stdout)[-1]),
            re.findall(r"digest (\S+)", done.stdout)[-1])


# ---- looking at checkpoints ----

def test_a_folder_is_looked_at_as_the_job_is(home, gpt, alone):
    store = folder_of(home, gpt).parent
    listed = json.loads(home.cairn("ckpt", "ls", gpt, "-o", "json").stdout)
    of_folder = json.loads(alone("ckpt", "ls", store, "-o", "json").stdout)
    assert [c["step"] for c in of_folder] == [c["step"] for c in listed] == [400, 200]
    assert set(of_folder[0]) == set(listed[0])
    assert of_folder[0]["verified"] is None and listed[0]["verified"] in (True, False)
    for verb in ("show", "digest", "verify"):
        by_job = json.loads(home.cairn("ckpt", verb, f"{gpt}@200", "-o", "json").stdout)
        if verb == "show":
            assert by_job["times"] == listed[1]["times"] and by_job["times"]["encode_us"] > 0
            by_job["times"] = None  # only the coordinator knows them
        assert by_job == json.loads(alone("ckpt", verb, f"{store}@200", "-o", "json").stdout)
        assert by_job == json.loads(alone("ckpt", verb, folder_of(home, gpt, 200), "-o", "json").stdout)
    shown = json.loads(by_job := alone("ckpt", "show", store, "-o", "json").stdout)
    assert by_job and shown["step"] == 400 and shown["parent"] is None
    assert {b["name"] for b in shown["blobs"]} >= {"job.yaml", "pins.json"}
    assert shown["scalars"]["step"] == 400 and shown["scalars"]["seed"] == 3
    tensor = next(t for t in shown["tensors"] if t["name"] == "transformer.wte.weight")
    assert (tensor["dtype"], tensor["shape"], tensor["bytes"], tensor["in"]) == \
        ("f32", [256, 64], 65536, "parameters")


def test_diff_tells_equal_from_different_by_its_exit_code(home, gpt, alone):
    store = folder_of(home, gpt).parent
    same = alone("ckpt", "diff", f"{store}@200", f"{store}@200")
    assert "equal: 0 of 84 tensors differ" in same.stdout
    done = home.cairn("ckpt", "diff", f"{gpt}@200", f"{gpt}@400", "-o", "json", "--sort", "relative", check=False)
    assert done.returncode == 1
    diff = json.loads(done.stdout)
    assert not diff["equal"] and len(diff["tensors"]) == 84
    assert {s["name"]: (s["a"], s["b"]) for s in diff["scalars"] if s["differs"]}["step"] == (200, 400)
    relatives = [t["relative"] for t in diff["tensors"]]
    assert relatives == sorted(relatives, reverse=True)
    quiet = alone("ckpt", "diff", f"{store}@200", f"{store}@400", "-q", check=False)
    assert (quiet.returncode, quiet.stdout) == (1, "")
    assert alone("ckpt", "diff", f"{store}@200", f"{store}@201", check=False).returncode == 3


def test_the_numbers_of_diff_are_those_of_the_bytes(home, gpt):
    for step in (200, 400):
        home.cairn("ckpt", "export", f"{gpt}@{step}", f"own{step}.safetensors", "--names", "cairn", "--only", "all")
    sides = [read_safetensors(home.dir / f"own{step}.safetensors")[1] for step in (200, 400)]
    done = home.cairn("ckpt", "diff", f"{gpt}@200", f"{gpt}@400", "-o", "json", check=False)
    for tensor in json.loads(done.stdout)["tensors"]:
        data = [side[tensor["name"]][2] for side in sides]
        a, b = (array.array("f", side) for side in data)
        bits = sum(bin(x ^ y).count("1") for x, y in zip(*data))
        assert tensor["elements"] == len(a) and tensor["bits"] == bits
        assert tensor["differing"] == sum(data[0][4 * i:4 * i + 4] != data[1][4 * i:4 * i + 4] for i in range(len(a)))
        assert tensor["max_abs"] == max(abs(x - y) for x, y in zip(a, b))
        norm = sum((x - y) ** 2 for x, y in zip(a, b)) ** 0.5 / sum(x * x for x in a) ** 0.5
        assert abs(tensor["relative"] - norm) <= 1e-9 * norm


def test_diff_names_tensors_that_only_one_has(home, gpt, resnet):
    diff = json.loads(home.cairn("ckpt", "diff", gpt, resnet, "-o", "json", check=False).stdout)
    results = {t["name"]: t["result"] for t in diff["tensors"]}
    assert results["transformer.wte.weight"] == "only_a" and results["conv1.weight"] == "only_b"


def test_scrub_reads_all_of_a_store_and_says_what_is_damaged(home, gpt, resnet, alone):
    clean = alone("ckpt", "scrub", "checkpoints", "-o", "json")
    assert json.loads(clean.stdout)["good"] == 4 and resnet
    folder = folder_of(home, gpt, 200)
    shard = sorted(folder.glob("shard-*"))[0]
    good = shard.read_bytes()
    before = sorted(folder.parent.iterdir())
    shard.write_bytes(good[:9000] + bytes([good[9000] ^ 1]) + good[9001:])
    try:
        for done in (alone("ckpt", "scrub", "checkpoints", check=False),
                     home.cairn("ckpt", "scrub", folder.parent, check=False)):
            assert done.returncode == 8
            assert f"DAMAGED  {folder}" in done.stdout and shard.name in done.stdout
            assert "1 damaged" in done.stderr
        assert sorted(folder.parent.iterdir()) == before  # nothing is set aside
        done = alone("ckpt", "export", folder, "never.safetensors", check=False)
        assert done.returncode == 8 and "ckpt verify" in done.stderr
        assert not list(home.dir.glob("never*"))
        assert alone("ckpt", "diff", folder, folder, check=False).returncode == 8
    finally:
        shard.write_bytes(good)
    assert alone("ckpt", "scrub", home.home, check=False).returncode == 3


def test_mistakes_have_exit_codes_and_ways_out(home, gpt, alone):
    store = folder_of(home, gpt).parent
    cases = [(3, "no such folder", "ckpt", "diff", "/nowhere/x", store),
             (2, "--sort takes", "ckpt", "diff", store, store, "--sort", "size"),
             (2, "--dtype takes f32, bf16 or f16", "ckpt", "export", store, "x", "--dtype", "f64"),
             (2, "--names takes hf or cairn", "ckpt", "export", store, "x", "--names", "tf"),
             (2, "--only takes model, ema or all", "ckpt", "export", store, "x", "--only", "moments"),
             (2, "--job JOBFILE", "ckpt", "import", "x.safetensors"),
             (2, "--to DIR", "ckpt", "import", "x", "--job", "gpt.yaml"),
             (3, "no such file", "ckpt", "import", "x.safetensors", "--job", "gpt.yaml"),
             (2, "no such file", "ckpt", "import", "gpt.yaml", "--job", "no.yaml", "--to", "y"),
             (2, "this is no safetensors file", "ckpt", "import", "gpt.yaml", "--job", "gpt.yaml", "--to", "y"),
             (2, "ls lists all", "ckpt", "ls", f"{store}@200"),
             (5, "no coordinator", "ckpt", "scrub", "a-job")]
    for code, words, *args in cases:
        done = alone(*args, check=False)
        assert done.returncode == code and words in done.stderr, (args, done.returncode, done.stderr)
    assert not (home.dir / "x").exists() and not (home.dir / "y").exists()


def test_rm_leaves_what_is_no_checkpoint(home, alone):
    assert alone("ckpt", "rm", home.dir, check=False).returncode == 4
    assert (home.dir / "gpt.yaml").exists()


# ---- files for other people ----

def test_an_export_has_hugging_face_s_names_and_shapes(home, gpt, alone):
    home.cairn("ckpt", "export", gpt, "hf.safetensors")
    alone("ckpt", "export", folder_of(home, gpt), "own.safetensors", "--names", "cairn")
    metadata, tensors = read_safetensors(home.dir / "hf.safetensors")
    _, own = read_safetensors(home.dir / "own.safetensors")
    layer = [f"{part}.{kind}" for part in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
             for kind in ("weight", "bias")]
    names = {"wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias"} | {f"h.{i}.{n}" for i in (0, 1) for n in layer}
    assert set(tensors) == set(own) == {f"transformer.{n}" for n in names}
    assert metadata["format"] == "pt" and metadata["cairn.step"] == "400"
    assert metadata["cairn.digest"] == home.cairn("ckpt", "digest", gpt).stdout.strip()
    assert tensors["transformer.h.0.attn.c_attn.weight"][1] == [64, 192]
    for name, (dtype, shape, data) in tensors.items():
        assert dtype == "F32"
        other = transposed(own[name][1], own[name][2]) if CONV1D.search(name) else own[name][1:]
        assert (shape, data) == (other[0], other[1]), name


def test_an_export_never_replaces_a_file_unless_forced(home, gpt):
    path = home.dir / "kept.safetensors"
    path.write_text("mine", encoding="utf-8")
    done = home.cairn("ckpt", "export", gpt, path, check=False)
    assert done.returncode == 4 and "--force" in done.stderr and path.read_text(encoding="utf-8") == "mine"
    home.cairn("ckpt", "export", gpt, path, "--force")
    assert len(read_safetensors(path)[1]) == 28
    assert not list(home.dir.glob("*.tmp"))


def test_an_export_takes_the_place_of_nothing_but_a_file(home, gpt):
    (home.dir / "folder").mkdir()
    os.mkfifo(home.dir / "fifo")
    (home.dir / "device").symlink_to("/dev/null")
    for name in ("folder", "fifo", "device"):
        done = home.cairn("ckpt", "export", gpt, name, "--force", check=False)
        assert done.returncode == 4 and "no file" in done.stderr, done.stderr
    assert (home.dir / "folder").is_dir() and (home.dir / "fifo").is_fifo() and (home.dir / "device").is_symlink()
    done = home.cairn("ckpt", "export", gpt, "nowhere/file", check=False)
    assert done.returncode == 3 and "no folder" in done.stderr
    assert home.cairn("ckpt", "export", gpt, "s3://bucket/file", check=False).returncode == 2


def test_names_of_any_bytes_come_out_as_text(home, gpt, alone):
    store = folder_of(home, gpt).parent
    odd = home.dir / os.fsdecode(b"odd-\xff")
    shutil.copytree(store, odd / store.name)
    (odd / store.name / folder_of(home, gpt).name / os.fsdecode(b"\xfe\x1b[2J\n")).touch()
    one, other = json.loads(alone("ckpt", "verify", f"{odd / store.name}@all", "-o", "json").stdout)
    assert one["good"] and other["good"] and "/odd-?/" in one["path"]
    assert one["findings"] == ["??[2J?: the manifest doesn't name it, ignored"]
    for verb in ("ls", "show", "digest"):
        assert "/odd-?/" in alone("ckpt", verb, odd / store.name, "-o", "json").stdout
    assert "/odd-?/" in alone("ckpt", "rm", f"{odd / store.name}@200", "-o", "json").stdout


def test_halves_are_the_nearest_of_the_stored_values(home, gpt):
    home.cairn("ckpt", "export", gpt, "wide.safetensors")
    _, wide = read_safetensors(home.dir / "wide.safetensors")
    for dtype in ("f16", "bf16"):
        home.cairn("ckpt", "export", gpt, f"{dtype}.safetensors", "--dtype", dtype)
        _, halves = read_safetensors(home.dir / f"{dtype}.safetensors")
        for name, (kind, shape, data) in halves.items():
            values = array.array("f", wide[name][2])
            if dtype == "f16":
                expected = struct.pack(f"<{len(values)}e", *values)
            else:
                bits = array.array("I", wide[name][2])
                expected = array.array("H", [(b + 0x7fff + (b >> 16 & 1)) >> 16 for b in bits]).tobytes()
            assert (kind, shape) == (dtype.upper(), wide[name][1]) and data == expected, name


def test_what_was_exported_is_imported_bit_for_bit(home, gpt, alone):
    home.cairn("ckpt", "export", gpt, "out.safetensors", "--force")
    alone("ckpt", "import", "out.safetensors", "--job", "gpt.yaml")
    folder = home.dir / "out" / "step-000000000000.g1"
    assert alone("ckpt", "verify", folder).stdout == f"good     {folder}\n"
    assert [c["step"] for c in json.loads(alone("ckpt", "ls", "out", "-o", "json").stdout)] == [0]
    alone("ckpt", "export", "out", "again.safetensors")
    assert read_safetensors(home.dir / "again.safetensors")[1] == read_safetensors(home.dir / "out.safetensors")[1]
    diff = json.loads(alone("ckpt", "diff", folder_of(home, gpt), folder, "-o", "json", check=False).stdout)
    for tensor in diff["tensors"]:  # moments are zero
        assert (tensor["result"] == "equal") == ("/" not in tensor["name"]), tensor
    done = alone("ckpt", "import", "out.safetensors", "--job", "gpt.yaml", check=False)
    assert done.returncode == 4  # it is there
    alone("ckpt", "export", folder_of(home, gpt), "all.safetensors", "--names", "cairn", "--only", "all")
    alone("ckpt", "import", "all.safetensors", "--job", "gpt.yaml", "--to", "twice/step-000000000000.g1")
    assert alone("ckpt", "digest", "twice").stdout == alone("ckpt", "digest", "out").stdout


def test_a_job_starts_from_weights_whatever_its_workers(home, gpt):
    home.cairn("ckpt", "export", gpt, "start.safetensors")
    digests = set()
    for workers in (1, 2):
        job = home.submit(GPT, model__weights="start.safetensors", workers__count=workers, train__seed=99)
        digests.add(home.digest(job, 120))
    assert len(digests) == 1
    _, digest = local(home, "gpt.yaml", "--set", "model.weights=start.safetensors", "--set", "train.seed=99")
    assert {digest} == digests
    assert local(home, "gpt.yaml", "--set", "train.seed=99")[1] != digest
    still, _ = local(home, "gpt.yaml", "--set", "model.weights=start.safetensors", *STILL)
    trained, _ = local(home, "gpt.yaml")
    assert still == trained


def test_weights_of_another_model_are_the_user_s_mistake(home, gpt):
    home.cairn("ckpt", "export", gpt, "other.safetensors")
    job = home.submit_unseen(GPT, model__weights="other.safetensors", model__width=32)
    shown = home.wait_state(job, "FAILED")
    assert "model.weights" in shown["reason"] and "[256, 64]" in shown["reason"] and shown["restarts"] == 0
    for sets, words in ((["model.layers=3"], "there is no tensor transformer.h.2."),
                        (["model.layers=1"], "has no place in the model")):
        done = home.cairn("ckpt", "import", "other.safetensors", "--job", "gpt.yaml", "--to", "no/step-000000000000.g1",
                          "--set", *sets, check=False)
        assert done.returncode == 2 and words in done.stderr and not (home.dir / "no").exists()


def test_plan_says_before_anything_starts_that_weights_do_not_fit(home, gpt, alone):
    home.cairn("ckpt", "export", gpt, "planned.safetensors")
    assert "gpt2" in alone("plan", "gpt.yaml", "--set", "model.weights=planned.safetensors").stdout
    done = alone("plan", "gpt.yaml", "--set", "model.weights=planned.safetensors", "--set", "model.vocab=300", check=False)
    assert done.returncode == 2 and "[256, 64], the model has [300, 64]" in done.stderr


def test_heads_are_those_of_the_config_beside_the_weights(home, gpt, alone):
    (home.dir / "tuned").mkdir()
    home.cairn("ckpt", "export", gpt, "tuned/model.safetensors")
    (home.dir / "tuned/config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4}))
    job = home.submit_unseen(GPT, model__weights="tuned/model.safetensors")
    shown = home.wait_state(job, "FAILED")
    assert "set model.heads to 4" in shown["reason"] and shown["restarts"] == 0
    sets = ["--set", "model.weights=tuned/model.safetensors"]
    done = alone("plan", "gpt.yaml", *sets, check=False)
    assert done.returncode == 2 and "set model.heads to 4" in done.stderr
    assert "gpt2" in alone("plan", "gpt.yaml", *sets, "--set", "model.heads=4").stdout


def test_what_a_difference_is_to_is_not_removed(home, alone):
    sets = ["checkpoint.delta=true", "checkpoint.every=250 steps", "checkpoint.keep.last=8", "train.duration=2000 steps"]
    job = home.cairn("submit", "gpt.yaml", "-o", "name", *(w for s in sets for w in ("--set", s))).stdout.strip()
    home.digest(job, 120)  # that of the stored bytes, whatever it is a difference to
    store = folder_of(home, job).parent
    listed = json.loads(alone("ckpt", "ls", store, "-o", "json").stdout)
    assert {c["step"]: c["parent_step"] for c in listed} == \
        {c["step"]: c["parent_step"] for c in json.loads(home.cairn("ckpt", "ls", job, "-o", "json").stdout)}
    child = next(c for c in listed if c["parent_generation"])
    parent, step = child["parent_step"], child["step"]
    shown = json.loads(alone("ckpt", "show", f"{store}@{step}", "-o", "json").stdout)
    assert shown["parent"] == {"step": parent, "generation": 1}
    refused = alone("ckpt", "rm", f"{store}@{parent}", check=False)
    assert refused.returncode == 4 and f"step {step} holds differences to it" in refused.stderr
    assert home.cairn("ckpt", "rm", f"{job}@{parent}", check=False).returncode == 4
    assert alone("ckpt", "diff", f"{store}@{step}", f"{store}@{step}").returncode == 0
    paths = {c["step"]: c["path"] for c in listed}
    assert json.loads(home.cairn("ckpt", "rm", f"{job}@{step}", "-o", "json").stdout) == {"path": paths[step]}
    until(lambda: not Path(paths[step]).exists(), 30, "the coordinator removed it")
    assert alone("ckpt", "rm", f"{store}@{parent}", "-o", "name").stdout == paths[parent] + "\n"
    assert len(json.loads(alone("ckpt", "ls", store, "-o", "json").stdout)) == len(listed) - 2


def test_a_resnet_has_torchvision_s_names_and_comes_back(home, resnet, alone):
    home.cairn("ckpt", "export", resnet, "resnet.safetensors")
    _, tensors = read_safetensors(home.dir / "resnet.safetensors")
    assert {"conv1.weight", "bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var", "bn1.num_batches_tracked",
            "layer1.0.conv1.weight", "layer2.0.downsample.0.weight", "layer2.0.downsample.1.running_var",
            "layer4.1.bn2.num_batches_tracked", "fc.weight", "fc.bias"} <= set(tensors)
    assert len(tensors) == 122  # as torchvision's state_dict
    assert tensors["bn1.num_batches_tracked"] == ("I64", [], struct.pack("<q", 4))
    alone("ckpt", "import", "resnet.safetensors", "--job", "resnet.yaml")
    alone("ckpt", "export", "resnet", "resnet2.safetensors")
    again = read_safetensors(home.dir / "resnet2.safetensors")[1]
    for name, tensor in tensors.items():
        if not name.endswith("num_batches_tracked"):  # no step was made yet
            assert again[name] == tensor, name


# ---- other people's libraries ----

@pytest.fixture(name="peer")
def peer_libraries():
    folder = os.environ.get("CAIRN_PEER")
    if not folder:
        pytest.skip("CAIRN_PEER names no Python environment with torch, safetensors and transformers")

    def call(*args):
        done = subprocess.run([f"{folder}/bin/python", Path(__file__).with_name("peer_tools.py"), *map(str, args)],
                              capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])
    return call


def test_transformers_computes_the_same_loss(home, gpt, peer):
    home.cairn("ckpt", "export", gpt, "lm.safetensors")
    ours, digest = local(home, "gpt.yaml")
    assert digest == home.cairn("ckpt", "digest", gpt).stdout.strip()
    theirs = peer("gpt2-loss", home.dir / "lm.safetensors", home.dir / "eval.txt", json.dumps(CONFIG))
    print(f"gpt2: Cairn {ours:.9g}, transformers {theirs['loss']:.9g} over {theirs['targets']} tokens")
    assert abs(ours - theirs["loss"]) < 1e-5


def test_a_file_of_transformers_is_imported_and_computes_the_same_loss(home, gpt, peer, alone):
    assert gpt
    peer("gpt2-make", home.dir / "made", json.dumps(CONFIG))
    made = home.dir / "made" / "model.safetensors"
    alone("ckpt", "import", made, "--job", "gpt.yaml")
    alone("ckpt", "export", home.dir / "made" / "model", "made-out.safetensors")
    assert read_safetensors(home.dir / "made-out.safetensors")[1] == read_safetensors(made)[1]
    ours, _ = local(home, "gpt.yaml", "--set", f"model.weights={made}", *STILL)
    theirs = peer("gpt2-loss", made, home.dir / "eval.txt", json.dumps(CONFIG))
    print(f"gpt2 made there: Cairn {ours:.9g}, transformers {theirs['loss']:.9g}")
    assert abs(ours - theirs["loss"]) < 1e-5


def test_torch_computes_the_same_loss_of_a_resnet(home, resnet, peer):
    home.cairn("ckpt", "export", resnet, "vision.safetensors")
    ours, digest = local(home, "resnet.yaml")
    assert digest == home.cairn("ckpt", "digest", resnet).stdout.strip()
    theirs = peer("resnet18-loss", home.dir / "vision.safetensors", home.dir / "images", home.dir / "labels")
    print(f"resnet18: Cairn {ours:.9g}, torch {theirs['loss']:.9g}")
    assert abs(ours - theirs["loss"]) < 1e-5 and theirs["batches"] == 4


def test_what_the_safetensors_library_rewrites_is_the_same_model(home, gpt, peer, alone):
    home.cairn("ckpt", "export", gpt, "theirs-in.safetensors")
    peer("rewrite", home.dir / "theirs-in.safetensors", home.dir / "theirs.safetensors")
    alone("ckpt", "import", "theirs.safetensors", "--job", "gpt.yaml")
    alone("ckpt", "import", "theirs-in.safetensors", "--job", "gpt.yaml")
    assert alone("ckpt", "digest", "theirs").stdout != ""
    # The job file in them names another file; the states are equal.
    assert alone("ckpt", "diff", "theirs", "theirs-in").returncode == 0
