"""A Lightning script as its own documentation writes one, for two processes started by torchrun."""
import os

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

    def training_step(self, batch, _):
        numbers, labels = batch
        loss = torch.nn.functional.cross_entropy(self.net(numbers), labels)
        print(f"step {self.global_step + 1} loss {loss.item():.4f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main():
    lightning.seed_everything(1)
    data = torch.utils.data.TensorDataset(torch.randn(320, 32), torch.randint(10, (320,)))
    trainer = lightning.Trainer(accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp", max_epochs=2,
                                logger=False, enable_progress_bar=False, enable_model_summary=False,
                                callbacks=[ModelCheckpoint("lightning", save_last=True, every_n_train_steps=5)])
    last = "lightning/last.ckpt"
    trainer.fit(Classifier(), torch.utils.data.DataLoader(data, batch_size=16),
                ckpt_path=last if os.path.exists(last) else None)
    print("done", trainer.world_size)


main()
