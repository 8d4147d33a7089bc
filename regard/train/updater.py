"""The work of one update: forward, backward, clipping, Adam. Eagerly, or on a GPU as replayed CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from regard.common.mixing import mix_all
from regard.train.ranks import Ranks, accumulating
from regard.train.settings import Settings

BatchShape = tuple[torch.Size, ...]
Paces = Mapping[nn.Parameter, float]


class Updater:
    """Runs an objective and its optimizer.

    ``objective(*tensors)`` returns sums over a batch, the first of them the one to minimise; ``sums`` adds them up on
    the device, to be read now and then. ``paces`` are the parameters that learn faster or slower than others: their
    learning rate is so many times the schedule's.
    """

    def __init__(
        self, objective: nn.Module, settings: Settings, ranks: Ranks, sums: int, paces: Paces | None = None
    ) -> None:  # fmt: skip
        self.objective, self.settings, self.ranks = objective, settings, ranks
        self.parameters = [p for p in objective.parameters() if p.requires_grad]
        self.sums = torch.zeros(sums, dtype=torch.float32, device=ranks.device)
        self.norm = torch.zeros((), device=ranks.device)
        on_gpu = ranks.device.type == "cuda"
        self.groups = _group_by_pace(self.parameters, paces or {})
        self.rates = [torch.zeros((), device=ranks.device) for _ in self.groups]  # on a GPU graphs read rates from here
        rates = self.rates if on_gpu else [settings.lr] * len(self.groups)
        self.optimizer = torch.optim.AdamW(
            [{"params": some, "lr": rate} for some, rate in zip(self.groups.values(), rates, strict=True)],
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            fused=True,
            capturable=on_gpu,
        )

    def update(self, batches: Sequence[tuple[Sequence[Tensor], int]], update: int) -> None:
        """One update over these batches, each given with the number of tokens in it on all ranks."""
        self.gradients(batches, update)
        self.step(self.settings.rate(update))

    def gradients(self, batches: Sequence[tuple[Sequence[Tensor], int]], update: int) -> None:
        """Those of all batches, added up where the optimizer finds them."""
        total = sum(tokens for _, tokens in batches)
        for i, (tensors, _) in enumerate(batches):
            seed_dropout(self.settings.seed, update, i, self.ranks)
            self.backward(tensors, 1.0 / total, last=i == len(batches) - 1)

    def backward(self, tensors: Sequence[Tensor], scale: float, last: bool) -> None:
        moved = [t.to(self.ranks.device, non_blocking=True) for t in tensors]
        with accumulating(self.objective, last):
            self._backward(moved, scale * self.ranks.world)  # what is averaged over ranks is to be a sum

    def _backward(self, tensors: Sequence[Tensor], scale: float | Tensor) -> None:
        sums = self.objective(*tensors)
        (sums[0] * scale).backward()
        self.sums += sums.detach()

    def step(self, rate: float) -> None:
        self._set_rate(rate)
        self._step()
        self.optimizer.zero_grad(set_to_none=True)

    def _set_rate(self, rate: float) -> None:
        for group, place, pace in zip(self.optimizer.param_groups, self.rates, self.groups, strict=True):
            if self.ranks.device.type == "cuda":
                place.fill_(rate * pace)
            else:
                group["lr"] = rate * pace

    def _step(self) -> None:
        if self.settings.clip:
            norm = nn.utils.clip_grad_norm_(self.parameters, self.settings.clip)
            self.norm.copy_(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
        self.optimizer.step()

    def wait(self) -> None:
        """Until all updates that were begun are done."""
        if self.ranks.device.type == "cuda":
            torch.cuda.synchronize(self.ranks.device)

    def read(self) -> list[float]:
        """The sums since the last time, over all ranks. This waits for the device."""
        totals: list[float] = self.ranks.sum(self.sums).tolist()
        self.sums.zero_()
        return totals


class GraphEngine(Updater):
    """The same with CUDA graphs: one of forward and backward for each shape of batch, one of clipping and Adam.

    A shape is run eagerly the first times that it comes, which is also the warm-up that capturing needs, and captured
    after. All of the work stands on one side stream, graphs share one pool of memory, and gradients stay where they
    are. If something cannot be captured, or memory runs out beside the graphs, ``say`` is told and everything goes on
    eagerly, the update that had begun from its beginning.
    """

    WARM, SHAPES = 2, 160  # times a shape is run eagerly; graphs kept

    def __init__(
        self,
        objective: nn.Module,
        settings: Settings,
        ranks: Ranks,
        sums: int,
        say: Callable[[str], None],
        paces: Paces | None = None,
    ) -> None:
        super().__init__(objective, settings, ranks, sums, paces)
        self.say = say
        self.stream = torch.cuda.Stream(ranks.device)
        self.seen: dict[BatchShape, int] = {}
        self.graphs: dict[BatchShape, tuple[torch.cuda.CUDAGraph, list[Tensor]]] = {}
        self.last: torch.cuda.CUDAGraph | None = None
        self.steps = 0
        self.scale = torch.zeros((), device=ranks.device)
        self.pool = torch.cuda.graph_pool_handle()
        self.works = True
        for p in self.parameters:
            p.grad = torch.zeros_like(p)

    def update(self, batches: Sequence[tuple[Sequence[Tensor], int]], update: int) -> None:
        # what others wrote, gradients' first zeros and a resumed run's moments among it, was written on their stream
        self.stream.wait_stream(torch.cuda.current_stream(self.ranks.device))
        with torch.cuda.stream(self.stream):
            super().update(batches, update)

    def read(self) -> list[float]:
        with torch.cuda.stream(self.stream):
            return super().read()

    def gradients(self, batches: Sequence[tuple[Sequence[Tensor], int]], update: int) -> None:
        before, short = self.sums.clone(), False
        try:
            super().gradients(batches, update)
        except torch.OutOfMemoryError:
            if not self.graphs:
                raise
            short = True  # and no more here: the exception holds on to what was computed
        if short:
            self._drop_graphs()
            self.sums.copy_(before)
            super().gradients(batches, update)

    def _drop_graphs(self) -> None:
        self.say("GPU memory is low: continuing without CUDA graphs, which needs less memory and more time")
        self.works = False
        self.stream.synchronize()
        self.graphs.clear()
        self.last = None
        torch._foreach_zero_([p.grad for p in self.parameters if p.grad is not None])
        torch.cuda.empty_cache()

    def backward(self, tensors: Sequence[Tensor], scale: float, last: bool) -> None:
        shape = tuple(t.shape for t in tensors)
        self.scale.fill_(scale)
        if shape not in self.graphs:
            self.seen[shape] = times = self.seen.get(shape, 0) + 1
            if times <= self.WARM or len(self.graphs) >= self.SHAPES or not self._capture(shape, tensors):
                self._backward([t.to(self.ranks.device, non_blocking=True) for t in tensors], self.scale)
                return
        graph, inputs = self.graphs[shape]
        for place, t in zip(inputs, tensors, strict=True):
            place.copy_(t, non_blocking=True)
        graph.replay()

    def step(self, rate: float) -> None:
        self._set_rate(rate)
        self.steps += 1
        if self.last is None and self.works and self.steps > self.WARM:
            self.last = self._capture_graph(self._step_and_clear)
        if self.last is None:
            self._step_and_clear()
        else:
            self.last.replay()

    def _step_and_clear(self) -> None:
        self._step()
        torch._foreach_zero_([p.grad for p in self.parameters if p.grad is not None])

    def _capture(self, shape: BatchShape, tensors: Sequence[Tensor]) -> bool:
        if not self.works:
            return False
        inputs = [t.to(self.ranks.device) for t in tensors]
        graph = self._capture_graph(lambda: self._backward(inputs, self.scale))
        if graph is not None:
            self.graphs[shape] = graph, inputs
        return graph is not None

    def _capture_graph(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph | None:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.ranks.device)
        try:
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
                work()
        except RuntimeError as error:
            self.works = False
            self.say(f"continuing without CUDA graphs: {str(error).splitlines()[0]}")
            return None
        return graph


def _group_by_pace(parameters: Sequence[nn.Parameter], paces: Paces) -> dict[float, list[nn.Parameter]]:
    """Parameters that learn at the same pace together; 1.0 where nothing else was said."""
    groups: dict[float, list[nn.Parameter]] = {}
    for p in parameters:
        groups.setdefault(paces.get(p, 1.0), []).append(p)
    return groups


def seed_dropout(seed: int, update: int, batch: int, ranks: Ranks) -> None:
    """Dropout depends on the seed and on where the run stands, not on what was drawn before."""
    number = mix_all(seed, update, batch, ranks.rank) >> 1
    if ranks.device.type == "cuda":
        torch.cuda.default_generators[ranks.device.index].manual_seed(number)
    torch.default_generator.manual_seed(number)
