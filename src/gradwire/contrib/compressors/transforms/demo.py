"""Momentum sent as the largest frequencies of each tile, with the sign of the decoded mean as the step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import cast

import torch
from torch import Tensor

from gradwire.compressors.decoders import ManyDecoder
from gradwire.compressors.sparse.ops import tile_topk
from gradwire.contrib.compressors.transforms._cosine_tiles import Kind, batches, chunks, kinds, parts, regions, rows_of
from gradwire.contrib.compressors.transforms.ops import waves_add_decoded
from gradwire.errors import WireError, is_float32, is_int, require
from gradwire.kernels import Pieces
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["DeMo"]


@dataclass(frozen=True)
class DeMo(ManyDecoder):
    """Transform tiles of the gradient to frequencies, send the k largest of each, and step along the sign of the mean.

    A matrix is cut into tiles of c x c, less at the right and the lower edge; W is the orthonormal DCT-II:

        Y = W_a X W_b^T for a tile of a x b;  C(X) = W_a^T top_k(Y) W_b,  k = max(1, ceil(ratio a b))
        |C(x) - x|^2 <= (1 - ratio) |x|^2 for every x, as for top-k, because W is orthonormal

    The optimizer gets sign(mean C(D)), so its learning rate is that of sign descent.

    D is this worker's momentum, the memory ``demo``: D = beta D + g, and D = D - C(D) after the step, beta 0.999. Let
    the optimizer have no momentum of its own: plain SGD, whose weight decay is then decoupled, as the authors' is.
    Smooth gradients need far fewer frequencies than elements; white noise needs as many. Small parameters travel dense
    unless ``min_numel=0``: they keep the scale of their gradients, and get no sign.

    Two things differ from the authors' code. It divides each frequency by the number of ranks that sent it; here the
    mean is over all ranks, as with every other method. And its learning rate is inside D: a constant one makes no
    difference to a sign, and one that changes makes none with ``lr_correction``.

    A tensor is a matrix of ``shape[0]`` rows, a vector is one row. Ranks decode identical bits if they run the same
    build of torch on the same kind of device.

    Args:
        ratio: share of the frequencies that are sent, in (0, 1]; 1/128 is the paper's 32 of 64 x 64.
        chunk: c, 2 to 256. Larger: longer waves, and 4 c operations an element.
        sign: true: the optimizer gets the sign. False: the transform alone, like top-k: the optimizer gets the mean,
            and the memory is a residual unless another one is asked for.

    Raises:
        ConfigError: a parameter is outside its range.

    Example:
        >>> code = DeMo(ratio=0.01, chunk=16)
        >>> wave = torch.cos(torch.pi * 3 * (torch.arange(16) + 0.5) / 16).expand(16, 16).contiguous()
        >>> torch.allclose(code.decompress(code.compress(wave), wave.shape), wave, atol=1e-5)
        True

    Source:
        B. Peng, J. Quesnelle, D. P. Kingma, "DeMo: Decoupled Momentum Optimization", arXiv:2411.19870, 2024.
    """

    ratio: float = 0.0078125
    chunk: int = 64
    sign: bool = True

    name = "demo"
    family = "sparsification"
    reference = "B. Peng, J. Quesnelle, D. P. Kingma, DeMo, arXiv:2411.19870, 2024"
    portable = False
    takes_pieces = True
    feedback = "required"
    alignment = 0

    def __post_init__(self) -> None:
        require(is_float32(self.ratio) and 0 < self.ratio <= 1, "DeMo.ratio", "in (0, 1]", self.ratio)
        require(is_int(self.chunk, 2, 256), "DeMo.chunk", "an integer in [2, 256]", self.chunk)
        require(isinstance(self.sign, bool), "DeMo.sign", "True or False", self.sign)

    @property
    def votes(self) -> bool:
        """Return whether the mean is replaced by its sign, as it is with ``sign``."""
        return self.sign

    @property
    def memory(self) -> str | None:
        """The memory of the method: ``demo`` with ``sign``; the transform alone works with any."""
        return "demo" if self.sign else None

    def delta(self, n: int) -> float:
        return min(1.0, self.ratio) if n else 1.0

    def layout(self, shape: Sequence[int]) -> Layout:
        """The layout: the k values of each tile, then their places in it; whole tiles first, each kind row by row."""
        count = sum(kind.tiles * kind.k for kind in kinds(shape, self.chunk, self.ratio))
        return Layout((Field("values", torch.float32, count), Field("places", torch.int16, count)))

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        many: object = x
        if not isinstance(many, Pieces):
            self._encode(x, payload)
        elif x.device.type == "cpu":
            # Tiles of one tensor fill a cache, and a product of more of them could have other last bits.
            fields = zip(*(Pieces.each(cast(Pieces, field)) for field in payload), strict=True)
            for piece, shape, own in zip(many.each(), many.shapes, fields, strict=True):
                self._encode(piece.view(shape), own)
        else:
            self.encode_together(many, cast("tuple[Pieces, Pieces]", payload))

    def _encode(self, x: Tensor, payload: Payload) -> None:
        matrix = x.view(rows_of(x.shape), -1) if x.numel() else x
        for kind, values, places in self._fields(x.shape, payload):
            for tiles, first in batches(matrix, kind):
                spectrum = _spectrum(tiles.reshape(-1, kind.b), kind.a)
                part = slice(first, first + spectrum.shape[0])
                tile_topk(spectrum.view(-1), values[part].view(-1), places[part].view(-1), kind.a * kind.b)

    def encode_together(self, x: Pieces, payload: tuple[Pieces, Pieces]) -> None:
        """Encode all pieces: tiles of one size are copied, transformed and chosen from together.

        Args:
            x: pieces of a flat tensor, with the shapes of what they are.
            payload: values and places of their payloads.
        """
        values, places = payload
        fields = values.places, places.places
        for chunk in x.places.derive(chunks, fields, self.chunk, self.ratio, x.device):
            spectrum = _spectrum(chunk.gather(x.base), chunk.a)
            largest, where = Pieces(values.base, chunk.values), Pieces(places.base, chunk.indices)
            tiles = Pieces(spectrum.view(-1), chunk.tiles)
            tile_topk(tiles.as_tensor(), largest.as_tensor(), where.as_tensor(), chunk.a * chunk.b)

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        many: object = out
        if isinstance(many, Pieces):
            self._add_together(cast("tuple[Pieces, Pieces]", payloads), many, scale)
            return
        pitch = out.numel() // max(1, rows_of(out.shape))
        for kind, start, end in parts(out.shape, self.chunk, self.ratio):
            values, places = (field[:, start:end] for field in payloads)
            flat = out.view(-1)[kind.top * pitch + kind.left :]
            sizes = kind.a, kind.b, kind.down, kind.across, pitch
            waves_add_decoded(values, places, *_waves(kind.a, kind.b, out.device), flat, *sizes, scale)

    def _add_together(self, payloads: tuple[Pieces, Pieces], out: Pieces, scale: float) -> None:
        values, places = payloads
        for region in out.places.derive(regions, (values.places, places.places), self.chunk, self.ratio):
            found, where = Pieces(values.base, region.values), Pieces(places.base, region.indices)
            tall, wide = _waves(region.a, region.b, out.device)
            down, across, pitch = cast("tuple[int, int, int]", region.sizes)
            rest = Pieces(out.base, region.out).as_tensor()
            sizes = region.a, region.b, down, across, pitch
            waves_add_decoded(found.as_tensor(), where.as_tensor(), tall, wide, rest, *sizes, scale)

    def settle(self, mean: Tensor) -> None:
        many: object = mean
        if self.sign and isinstance(many, Pieces):
            torch._foreach_sign_(many.each())
        elif self.sign:
            mean.sign_()

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        """Refuse places outside their tile.

        Raises:
            WireError: a place is not below the number of elements of its tile.
        """
        for kind, _, places in self._fields(shape, payload):
            if bool(((places.int() & 0xFFFF) >= kind.a * kind.b).any()):
                raise WireError(f"demo places must stay below {kind.a * kind.b}, the elements of their tile")

    def _fields(self, shape: Sequence[int], payload: Payload) -> Iterator[tuple[Kind, Tensor, Tensor]]:
        """Each kind of tile with its part of the payload, (tiles, k)."""
        for kind, first, last in parts(shape, self.chunk, self.ratio):
            values, places = (field[first:last].view(-1, kind.k) for field in payload)
            yield kind, values, places


@cache
def _cosines(size: int, device: torch.device) -> Tensor:
    """The matrix of the orthonormal DCT-II: row f is the wave of f half periods."""
    place = torch.arange(size, dtype=torch.float64, device="cpu")
    waves = torch.cos(math.pi / size * place.unsqueeze(1) * (place + 0.5)) * math.sqrt(2 / size)
    waves[0] *= math.sqrt(0.5)
    return waves.float().to(device)


def _waves(a: int, b: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The waves down and across a tile, flat."""
    return _cosines(a, device).view(-1), _cosines(b, device).view(-1)


def _spectrum(tiles: Tensor, a: int) -> Tensor:
    """Transform the rows of tiles of a x b, one after the other; return (tiles, a, b)."""
    b = tiles.shape[1]
    return _cosines(a, tiles.device) @ (tiles @ _cosines(b, tiles.device).mT).view(-1, a, b)
