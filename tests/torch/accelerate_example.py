"""An Accelerate script, for processes started by torchrun."""
import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed


def main():
    set_seed(1)
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(32, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(320, 32), torch.randint(10, (320,))), batch_size=8)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    step = 0
    if os.path.exists("accelerate/step"):
        accelerator.load_state("accelerate")
        with open("accelerate/step", encoding="utf-8") as file:
            step = int(file.read())
    for epoch in range(step // len(data), 2):
        skipped = accelerator.skip_first_batches(data, step % len(data))
        for numbers, labels in skipped:
            loss = torch.nn.functional.cross_entropy(model(numbers), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            accelerator.print(f"step {step} epoch {epoch} loss {loss.item():.4f}")
            if step % 10 == 0:
                accelerator.save_state("accelerate")
                if accelerator.is_main_process:
                    with open("accelerate/step", "w", encoding="utf-8") as file:
                        file.write(str(step))
    print("done", accelerator.num_processes)
    accelerator.end_training()


main()
