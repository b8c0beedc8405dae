"""What the six scripts share: their model, their dataset of tensors, and their options."""

import argparse

import torch
from torch import nn
from torch.utils.data import Dataset


class ClipDataset(Dataset):
    """Clips of one shape as tensors in a file: {"videos": [N, 3, T, H, W] in -1 to 1, "prompts": N texts}."""

    def __init__(self, path: str) -> None:
        content = torch.load(path, weights_only=True)
        self.videos, self.prompts = content["videos"], content["prompts"]

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, str]:
        return self.videos[index], self.prompts[index]


def collate(samples: list[tuple[torch.Tensor, str]]) -> dict:
    videos, prompts = zip(*samples, strict=True)
    return {"videos": torch.stack(videos), "prompts": prompts}


class Model(nn.Module):
    """Returns the loss of each of B clips; a placeholder for a video model and its loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, videos_BCTHW: torch.Tensor, prompts: tuple[str, ...]) -> torch.Tensor:
        colours_BC = videos_BCTHW.mean((2, 3, 4))
        wanted_B1 = torch.tensor([[len(prompt) / 100 + ord(prompt[-1]) / 1000] for prompt in prompts])
        return (self.net(colours_BC) - wanted_B1.to(colours_BC)).square().mean(1)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="clips.pt")
    parser.add_argument("--out", default="out", help="folder of the checkpoints")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--max-steps", type=int, default=10**9)
    parser.add_argument("--save-every", type=int, default=2, help="steps")
    parser.add_argument("--resume", help="checkpoint to go on from")
    return parser.parse_args()
