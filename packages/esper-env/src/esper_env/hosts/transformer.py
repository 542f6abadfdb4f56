"""The transformer host: a decoder-only language model with pre-norm blocks and causal attention."""

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper_env.config import check_positive
from esper_env.fused.layers import causal_attention, dense, embedding, normed_dense
from esper_env.fused.layout import Params
from esper_env.hosts.base import HOSTS, Host, Network

# A norm divides by what a lesion left alive. At torch's 1e-5 the norm of one live unit is a step function, and two
# trainings that differ by rounding part within a few dozen minibatches; at this value they stay together.
NORM_EPSILON = 0.1


class PlainEntry(nn.Module):
    """Token and position embeddings in plain torch; shorter texts use the first positions.

    Tokens are scaled up, so that what blocks add at birth does not drown them.
    """

    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [batch, length] as activations [batch, length, width]."""
        out: Tensor = sqrt(self.token.embedding_dim) * self.token(tokens) + self.position.weight[: tokens.shape[1]]
        return out


class PlainBlock(nn.Module):
    """One pre-norm block in plain torch."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = (nn.LayerNorm(width, NORM_EPSILON) for _ in range(2))
        # Without bias: attention does not depend on that of keys, so its gradient would be nothing but rounding.
        self.project, self.merge = (nn.Linear(width, outputs, bias=False) for outputs in (3 * width, width))
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Attention and MLP, each added to what it reads."""
        x = x + self.merge(self._attention(self.project(self.before_attention(x))))
        out: Tensor = x + self.down(self.up(self.before_mlp(x)).relu())
        return out

    def _attention(self, projected: Tensor) -> Tensor:
        batch, length, width = projected.shape
        q, k, v = projected.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, length, width // 3)


@dataclass(frozen=True)
class TransformerHost(Host):
    """`depth` blocks of one width that read up to `length` tokens and predict the next at every position.

    Fused activations are [n, batch, length, width]. A lesion leaves some units of a block's whole output alive, the
    part that flows past attention and MLP included: otherwise a lesioned block would be as good as one block less,
    which a seed beside any other block can make up for.
    """

    vocabulary: int
    length: int
    width: int
    heads: int
    hidden: int
    depth: int

    family: ClassVar[str] = "sequence"

    def __post_init__(self) -> None:
        check_positive("TransformerHost", **vars(self))
        if self.width % self.heads:
            raise ValueError(f"TransformerHost.width is {self.width}; allowed: multiples of heads={self.heads}")

    def template(self) -> Network:
        """The plain network: tokens [batch, length] to logits [batch, length, vocabulary]."""
        blocks = [PlainBlock(self.width, self.heads, self.hidden) for _ in range(self.depth)]
        head = nn.Sequential(nn.LayerNorm(self.width, NORM_EPSILON), nn.Linear(self.width, self.vocabulary))
        return Network(blocks, head, PlainEntry(self.vocabulary, self.length, self.width))

    def sample(self) -> Tensor:
        """One text."""
        return torch.zeros(1, self.length, dtype=torch.int64)

    def enter(self, params: Params, inputs: Tensor) -> Tensor:
        """Token and position embeddings."""
        tokens = embedding(inputs, params["token.weight"])
        return torch.add(params["position.weight"].unsqueeze(1), tokens, alpha=sqrt(self.width))

    def block(self, index: int, params: Params, x: Tensor) -> Tensor:  # noqa: ARG002 (all blocks are alike)
        """Attention and MLP, each added to what it reads."""
        shape, x = x.shape, x.flatten(1, 2)
        norm = (params["before_attention.weight"], params["before_attention.bias"])
        projected = normed_dense(x, *norm, params["project.weight"], None, NORM_EPSILON)
        mixed = causal_attention(projected.view(*shape[:3], -1), self.heads).flatten(1, 2)
        x = dense(mixed, params["merge.weight"], x)
        norm = (params["before_mlp.weight"], params["before_mlp.bias"])
        hidden = F.relu(normed_dense(x, *norm, params["up.weight"], params["up.bias"], NORM_EPSILON), inplace=True)
        return dense(hidden, params["down.weight"], x).view(shape)

    def head(self, params: Params, y: Tensor) -> Tensor:
        """A norm and a dense layer at every position."""
        norm, layer = (params["0.weight"], params["0.bias"]), (params["1.weight"], params["1.bias"])
        return normed_dense(y.flatten(1, 2), *norm, *layer, NORM_EPSILON).view(*y.shape[:3], -1)


HOSTS.register("transformer", TransformerHost)
