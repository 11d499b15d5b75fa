"""A small vision transformer for small images."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from joulegrad.lab.models.shapes import image

__all__ = ["vit_tiny"]


def vit_tiny(shape: tuple[int, ...] = (3, 32, 32), classes: int = 10) -> nn.Module:
    """ViT-Ti with patches of 4 x 4: 64 of them in 32 x 32; width 192, 12 blocks of 3 heads, no dropout.

    Example:
        >>> layout = Layout.of(vit_tiny())
        >>> layout.size, sorted(LayerType().members(layout))
        (5362762, ['head.bias', 'head.weight'])

    Reference: Dosovitskiy et al., An Image is Worth 16x16 Words, 2021; Touvron et al., DeiT, 2021, for its size.
    """
    return VisionTransformer(image("vit_tiny", shape, least=4, multiple=4), classes)


class VisionTransformer(nn.Module):
    """Patches as words, one word more to collect the answer; `head` reads it.

    Example:
        >>> VisionTransformer((1, 8, 8), classes=3, width=6, depth=1, heads=2)(torch.zeros(5, 1, 8, 8)).shape
        torch.Size([5, 3])
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        patch: int = 4,
        width: int = 192,
        depth: int = 12,
        heads: int = 3,
    ) -> None:
        super().__init__()
        channels, high, wide = shape
        self.answer = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.zeros(1, 1 + (high // patch) * (wide // patch), width))
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        for p in (self.answer, self.position):
            nn.init.trunc_normal_(p, std=0.02)

    def forward(self, images: Tensor) -> Tensor:
        """Logits, N x classes."""
        words = self.patches(images).flatten(2).transpose(1, 2)
        words = torch.cat([self.answer.expand(len(words), -1, -1), words], 1) + self.position
        logits: Tensor = self.head(self.norm(self.blocks(words))[:, 0])
        return logits


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)).

    Example:
        >>> Block(width=6, heads=2)(torch.zeros(1, 4, 6)).shape
        torch.Size([1, 4, 6])
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Words in, words out, N x words x width."""
        n, words, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, words, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, words, width)
        x = x + self.out(attended)
        y: Tensor = x + self.mlp(self.norm2(x))
        return y
