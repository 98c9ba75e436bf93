"""A Vision Transformer in stages and with owned moments: equal bits whatever dies; and its files are those of Hugging Face's
transformers, both ways, with their config.json."""
import json

import pytest

from home import Home
from test_llama import SPREAD
from test_tools import RESNET, STILL, local, peer_libraries, read_safetensors, write_data

assert peer_libraries  # the fixture `peer`

VIT = RESNET.replace("arch: resnet18, classes: 10", "arch: vit, classes: 10, layers: 2, heads: 4, width: 64, patch: 7")
HUGGING_FACE = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 256, "patch_size": 7,
                "image_size": 28, "num_channels": 1, "num_labels": 10}


def run(**sets):
    with Home(faults=sets.pop("faults", None)) as home:
        write_data(home.dir)
        return home.run(VIT, seconds=120, model__dropout=0.1, **sets)


@pytest.fixture(scope="module", name="home")
def one_home():
    with Home() as home:
        write_data(home.dir)
        (home.dir / "vit.yaml").write_text(VIT, encoding="utf-8")
        yield home


@pytest.fixture(scope="module", name="job")
def trained(home):
    job = home.cairn("submit", "vit.yaml", "-o", "name").stdout.strip()
    home.digest(job, 120)
    return job


@pytest.fixture(scope="module", name="alone")
def on_one_worker():
    return run(workers__count=1)


@pytest.mark.parametrize("spread", SPREAD, ids=["owners", "stages", "stages-owners"])
def test_spreading_and_a_kill_change_no_bit(spread, alone):
    count = 3 if spread == {"parallel__pipeline": 3} else 4
    assert run(workers__count=count, faults="trainer.backward,rank=1,step=3:kill", **spread) == alone


def test_an_export_has_hugging_face_s_names_and_config(home, job):
    (home.dir / "out").mkdir()
    home.cairn("ckpt", "export", job, "out/model.safetensors")
    metadata, tensors = read_safetensors(home.dir / "out/model.safetensors")
    assert metadata["format"] == "pt" and len(tensors) == 2 * 16 + 8
    shapes = {name: shape for name, (_, shape, _) in tensors.items()}
    layer = "vit.encoder.layer.1."
    for part in ("query", "key", "value"):
        assert shapes[f"{layer}attention.attention.{part}.weight"] == [64, 64]
        assert shapes[f"{layer}attention.attention.{part}.bias"] == [64]
    assert shapes["vit.embeddings.cls_token"] == [1, 1, 64]
    assert shapes["vit.embeddings.position_embeddings"] == [1, 17, 64]
    assert shapes["vit.embeddings.patch_embeddings.projection.weight"] == [64, 1, 7, 7]
    assert shapes[layer + "intermediate.dense.weight"] == [256, 64] and shapes["classifier.bias"] == [10]
    config = json.loads((home.dir / "out/config.json").read_text())
    assert {key: config[key] for key in HUGGING_FACE} == HUGGING_FACE
    (home.dir / "out/config.json").write_text(json.dumps({**config, "num_attention_heads": 8}))
    shown = home.cairn("plan", "vit.yaml", "--set", "model.weights=out/model.safetensors", check=False)
    assert shown.returncode == 2 and "set model.heads to 8" in shown.stderr


def test_patches_that_do_not_cover_the_images_are_refused(home):
    shown = home.cairn("plan", "vit.yaml", "--set", "model.patch=8", check=False)
    assert shown.returncode == 2 and "can't be cut into patches of 8x8" in shown.stderr


def test_transformers_computes_the_same_loss(home, job, peer):
    (home.dir / "trained").mkdir()
    home.cairn("ckpt", "export", job, "trained/model.safetensors")
    ours, digest = local(home, "vit.yaml")
    assert digest == home.cairn("ckpt", "digest", job).stdout.strip()
    theirs = peer("vit-loss", home.dir / "trained", home.dir / "images", home.dir / "labels")
    print(f"vit: Cairn {ours:.9g}, transformers {theirs['loss']:.9g}")
    assert abs(ours - theirs["loss"]) < 1e-5


def test_a_model_of_transformers_computes_the_same_loss_here(home, peer):
    folder = home.dir / "made"
    peer("vit-make", folder, json.dumps(HUGGING_FACE))
    ours, _ = local(home, "vit.yaml", "--set", f"model.weights={folder}/model.safetensors", *STILL)
    theirs = peer("vit-loss", folder, home.dir / "images", home.dir / "labels")
    print(f"vit made there: Cairn {ours:.9g}, transformers {theirs['loss']:.9g}")
    assert abs(ours - theirs["loss"]) < 1e-5
    home.cairn("ckpt", "import", folder / "model.safetensors", "--job", "vit.yaml", "--to", "in/step-000000000000.g1",
               "--set", "name=imported")
    home.cairn("ckpt", "export", home.dir / "in", "back.safetensors", "--force")
    assert read_safetensors(home.dir / "back.safetensors")[1] == read_safetensors(folder / "model.safetensors")[1]
