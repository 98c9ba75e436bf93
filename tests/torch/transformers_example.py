"""A script with Transformers' Trainer, for processes started by torchrun; nothing is downloaded."""
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint, set_seed


class Say(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        print(f"step {state.global_step}")


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 320

    def __getitem__(self, index):
        tokens = torch.randint(64, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def main():
    set_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0))
    arguments = TrainingArguments("transformers", use_cpu=True, ddp_backend="gloo", max_steps=40, save_steps=10, save_total_limit=2,
                                  per_device_train_batch_size=4, report_to=[], disable_tqdm=True)
    trainer = Trainer(model=model, args=arguments, train_dataset=Tokens(), callbacks=[Say()])
    try:
        last = get_last_checkpoint("transformers")
    except FileNotFoundError:
        last = None
    trainer.train(resume_from_checkpoint=last)
    print("done", arguments.world_size)


main()
