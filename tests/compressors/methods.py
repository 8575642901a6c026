"""Methods that a researcher might write, and what a rank does with them."""

import torch
import torch.distributed as dist

from gradwire.compressors.simple import SimpleCompressor
from gradwire.engine.exchange import Exchange
from gradwire.engine.policy import Policy
from gradwire.helpers import desparsify, pack, quantize, sparsify, unpack

SHAPES = [("a.weight", (9, 7)), ("a.bias", (40,)), ("b.weight", (5, 3, 3))]


class TopHalf(SimpleCompressor):
    def __init__(self, ratio=0.25):
        super().__init__()
        self.ratio = ratio

    def compress(self, tensor, name):
        return list(sparsify(tensor, self.ratio)), tensor.shape

    def decompress(self, tensors, ctx):
        return desparsify(*tensors, ctx)


class Linear8(SimpleCompressor):
    """Random rounding with the generator that the adapter hands out."""

    random = True
    unbiased = True

    def compress(self, tensor, name):
        codes, step = quantize(tensor, 8, stochastic=True, generator=self.generator)
        return (codes, step), None

    def decompress(self, tensors, ctx):
        codes, step = tensors
        return codes.float() * step


class Half(SimpleCompressor):
    summable = True
    headroom = 2.0**128 / 65520

    def compress(self, tensor, name):
        return [tensor.half()], None

    def decompress(self, tensors, ctx):
        return tensors[0].float()


class Summed(Half):
    """The sum over the ranks, which is not divided by their number."""

    average = False


class Signs(SimpleCompressor):
    """A bool tensor, which is no byte pattern that may come from outside as it is."""

    def compress(self, tensor, name):
        return [tensor >= 0], tensor.shape

    def decompress(self, tensors, ctx):
        assert tensors[0].dtype == torch.bool
        return tensors[0].float().mul(2).sub(1)


class Vote(SimpleCompressor):
    """Majority vote on packed signs."""

    average = False

    def compress(self, tensor, name):
        return [pack(tensor >= 0, 1)], tensor.shape

    def decompress(self, tensors, ctx):
        return unpack(tensors[0], 1, ctx.numel()).float().mul(2).sub(1).view(ctx)

    def aggregate(self, tensors):
        return torch.stack(list(tensors)).sum(0).sign()


class Drawn(SimpleCompressor):
    """GRACE's shared-seed random-k: the indices are in ctx, drawn from the name and a count of calls."""

    ctx_from_shape = False

    def __init__(self, k):
        self.k, self.calls = k, {}

    def compress(self, tensor, name):
        self.calls[name] = self.calls.get(name, 0) + 1
        generator = torch.Generator().manual_seed(sum(name.encode()) + self.calls[name])
        indices = torch.randperm(tensor.numel(), generator=generator)[: self.k]
        return [tensor.flatten()[indices]], (indices, tensor.shape)

    def decompress(self, tensors, ctx):
        indices, shape = ctx
        return desparsify(tensors[0], indices, shape)


class Momentum(Signs):
    """Signum: state without memory hooks."""

    def init_state(self, shape, device):
        return {"m": torch.zeros(shape, device=device)}

    def compress(self, tensor, name):
        state = self.state[name]
        state["m"] = 0.9 * state["m"] + 0.1 * tensor
        return super().compress(state["m"], name)


class OwnMemory(TopHalf):
    """Error feedback by the method's own hooks."""

    def init_state(self, shape, device):
        return {"unsent": torch.zeros(shape, device=device)}

    def memory_compensate(self, tensor, name):
        return self.state[name]["unsent"] + tensor

    def memory_update(self, tensor, name, compressor, tensor_compressed, ctx):
        self.state[name]["unsent"] = tensor - compressor.decompress(tensor_compressed, ctx)


class Rude(Half):
    """Changes everything it is given."""

    def compress(self, tensor, name):
        out = tensor.clone()
        tensor.fill_(7.0)
        return [out.half()], None

    def decompress(self, tensors, ctx):
        out = tensors[0].float()
        tensors[0].zero_()
        return out


def gradient(step, rank):
    n = sum(torch.Size(shape).numel() for _, shape in SHAPES)
    return torch.randn(n, generator=torch.Generator().manual_seed(1000 * step + rank))


def exchange(rank, method, steps, options):
    """Outputs of every step, and what the rank keeps; the buckets change their order after step 0."""
    run = Exchange(method.adapted(), group=dist.group.WORLD, policy=Policy(min_numel=0), **options)
    outputs = []
    for step in range(steps):
        shapes = SHAPES if step == 0 else SHAPES[::-1]
        parts = gradient(step, rank).split([torch.Size(shape).numel() for _, shape in SHAPES])
        flat = torch.cat(parts if step == 0 else parts[::-1])
        run.begin_step()
        run.run(flat, shapes)
        out = flat.split([torch.Size(shape).numel() for _, shape in shapes])
        outputs.append(torch.cat(out if step == 0 else out[::-1]))
    residuals = {name: kept.clone() for name, kept in run.residuals.worker.get("residual", {}).items()}
    return {
        "outputs": outputs,
        "states": run.residuals.states,
        "residuals": residuals,
        "sent": run.metrics()["bytes_sent"],
    }
