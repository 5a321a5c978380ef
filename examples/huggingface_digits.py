"""Train a small net on handwritten digits with Hugging Face's Trainer, so that it survives the loss of its machine.

``FailoverCallback`` is all that gpu-failover adds: three lines of this script. Run it alone, kill it, and run it again:

    FAILOVER_CHECKPOINT_DIR=/tmp/digits python examples/huggingface_digits.py --output /tmp/trainer
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset
from torch_digits import judged, load_digits, net
from transformers import Trainer, TrainingArguments, set_seed

from provisioner.node.torch.huggingface import FailoverCallback


class Named(Dataset[dict[str, torch.Tensor]]):
    """Images and digits under the names that the model's ``forward`` has for them."""

    def __init__(self, digits: TensorDataset) -> None:
        """Take the images and the digits."""
        self.images, self.digits = digits.tensors

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.digits)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """Return one."""
        return {"images": self.images[index], "labels": self.digits[index]}


class Net(nn.Module):
    """A convolution and a linear layer."""

    def __init__(self) -> None:
        """Draw the weights."""
        super().__init__()
        self.net = net()

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss and what is thought of each digit, as Trainer wants them."""
        logits = self.net(images)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def main() -> None:
    """Train, from the last checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--output", default="trainer", help="directory where Trainer writes")
    parser.add_argument("--every", type=float, metavar="SECONDS", help="between two checkpoints")
    arguments = parser.parse_args()

    set_seed(20240229)
    torch.set_num_threads(1)  # several threads may add in another order, and change last bits
    digits = load_digits()
    model = Net()
    settings = TrainingArguments(
        output_dir=arguments.output,
        num_train_epochs=arguments.epochs,
        per_device_train_batch_size=64,
        learning_rate=2e-3,
        logging_steps=10,
        save_strategy="no",  # the callback asks for what it needs
        report_to=[],
        dataloader_pin_memory=torch.cuda.is_available(),
        disable_tqdm=True,
    )
    failover = FailoverCallback(every_s=arguments.every)
    trainer = Trainer(model, settings, train_dataset=Named(digits), callbacks=[failover])
    trainer.train(resume_from_checkpoint=failover.restored)
    print(f"done at step {trainer.state.global_step}: {judged(model.net, digits)}", flush=True)


if __name__ == "__main__":
    main()
