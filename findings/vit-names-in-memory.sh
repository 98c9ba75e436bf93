#!/usr/bin/env bash
# transformers 5.24.0: what save_pretrained writes of a ViT has other names than the model's state_dict. So a file that safetensors'
# save_file makes of the state_dict, as many programs do, has none of the names of the published files, and is another model to all
# that read those.
#
# Expected: the keys of state_dict() are those of the file, as they were in transformers 4.
# Seen, transformers 5.24.0 with torch 2.15.0:
#   state_dict:      vit.layers.0.attention.q_proj.weight
#   save_pretrained: vit.encoder.layer.0.attention.attention.query.weight
#   16 of 24 names differ; a file of the state_dict loads back, too
# The library turns names while it loads and saves; from_pretrained takes both.
set -eu
work=$(mktemp -d)
. "$(dirname "$0")/lib/packages.sh"
packages torch==2.15.0 transformers==5.24.0
look_at "$python" <<'P'
import os

from safetensors import safe_open
from safetensors.torch import save_file
from transformers import ViTConfig, ViTForImageClassification

config = ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=128, image_size=28, patch_size=7,
                   num_channels=1)
model = ViTForImageClassification(config)
model.save_pretrained("saved")
with safe_open("saved/model.safetensors", "pt") as file:
    saved = set(file.keys())
held = set(model.state_dict())
print("state_dict:     ", min(held - saved, key=lambda name: "q_proj.weight" not in name))
print("save_pretrained:", min(saved - held, key=lambda name: "query.weight" not in name))
save_file(model.state_dict(), "saved/model.safetensors", metadata={"format": "pt"})
_, about = ViTForImageClassification.from_pretrained("saved", output_loading_info=True)
both = not about["missing_keys"] and not about["unexpected_keys"]
print(f"{len(held - saved)} of {len(held)} names differ; a file of the state_dict loads back{', too' if both else ' no more'}")
assert held != saved and both and os.path.exists("saved/config.json"), "this has changed"
P
