"""A small model with everything, or ResNet-18."""

import torch

from joulegrad import CWMP, ErrorFeedback, LayerType

OPERATOR = {
    "small": ErrorFeedback(CWMP(density=0.05, cost=LayerType())),
    "resnet18": ErrorFeedback(CWMP(density=0.01, cost=LayerType())),
}


class Small(torch.nn.Module):
    """Convolution, statistics, a counter, a classifier."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(4 * 16, 5)

    def forward(self, x):
        return self.fc(torch.relu(self.norm(self.conv(x))).flatten(1))


def made(name):
    """The model of a run."""
    torch.manual_seed(0)
    if name == "small":
        return Small()
    from joulegrad.lab import models

    return models.build("resnet18", (3, 32, 32), 10)


def step(name, model, who, when):
    """Learn a little from examples of one's own, on one thread: on more, sums of floats would come out otherwise."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1000 * who + when)
    model.train()
    if name == "small":
        x, y = torch.randn(16, 1, 6, 6, generator=generator), torch.randint(5, (16,), generator=generator)
        torch.nn.functional.cross_entropy(model(x), y).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        return
    with torch.no_grad():  # what is learned does not matter, only how much it weighs
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator), alpha=1e-3)
