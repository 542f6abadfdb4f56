"""Grow your own network in your own training loop: the lines marked with # are all that is added.

python examples/grow_my_network.py
"""

import torch
from esper_agent import FactoredRecurrentPPO, Grower  #
from esper_env import GrowingModule  #
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
images = images.float() / 16
train, val = slice(0, 1200), slice(1200, 1797)

model = nn.Sequential(
    nn.Sequential(nn.Linear(64, 4), nn.ReLU()),
    nn.Sequential(nn.Linear(4, 24), nn.ReLU()),
    nn.Sequential(nn.Linear(24, 24), nn.ReLU()),
    nn.Linear(24, 10),
)
model = GrowingModule(model, slots=["0", "1", "2"], example_input=images[:2])  #
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def evaluate() -> tuple[float, float]:
    """Validation loss and accuracy."""
    with torch.no_grad():
        logits = model(images[val])
    return cross_entropy(logits, labels[val]).item(), (logits.argmax(1) == labels[val]).float().mean().item()


epochs = 30
policy = FactoredRecurrentPPO.pretrained("Esper-v0")  #
grower = Grower(model, policy, optimizer, evaluate=evaluate, horizon=epochs)  #
for _ in range(epochs):
    for rows in torch.randperm(1200).split(100):
        optimizer.zero_grad()
        loss = model.loss(lambda rows=rows: cross_entropy(model(images[rows]), labels[rows]))  #
        loss.backward()
        optimizer.step()
    print(grower.step())  #
grown = model.plain()  #
assert grown(images[:2]).shape == (2, 10)
