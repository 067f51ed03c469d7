"""Several processes as one: each takes its slice of every batch, and all of them see the loss of the whole batch.

Row t of an epoch's table is the batch of step t on every rank; rank r passes its slice through the network. The outputs
of all ranks are gathered, so bound and loss act on the whole batch on each of them: class means, a, b, alpha, the prior
and score norms are global without further ado. With w the weights and s_r the outputs of rank r,

    dL/dw = sum over r of (ds_r/dw)^T dL/ds_r

Each rank knows L and hence dL/ds_r, and its own backward pass gives one term: gradients of the network are summed, not
averaged, over the ranks, and those of a, b and alpha are equal on all of them before any exchange.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from deepauc.training.engine.global_norm import GlobalBatchNorm
from deepauc.training.run.interrupt import TrainingStopped

T = TypeVar("T")
TIMEOUT = timedelta(minutes=30)  # the longest a rank waits for another


class Ranks:
    """The processes of a run, as one of them sees them; `ALONE` where there is one.

    Two groups: gloo's on the host for decisions (who stops, who writes, scores to be joined), and for what the step
    exchanges the default one on a GPU. By the first the host notices a lost process while NCCL waits in the second.
    exchanged: bytes of the results of all exchanges so far, by what they were for.
    """

    def __init__(self, group: distributed.ProcessGroup | None = None) -> None:
        self._group = group
        self.rank = 0 if group is None else distributed.get_rank(group)
        self.size = 1 if group is None else distributed.get_world_size(group)
        self.exchanged: Counter[str] = Counter()
        self._stop: tuple[Tensor, distributed.Work] | None = None  # the question under way
        self._stop_answer = False

    @property
    def alone(self) -> bool:
        return self.size == 1

    @property
    def leads(self) -> bool:
        """Whether this is the rank that writes and speaks."""
        return self.rank == 0

    @property
    def own_seed(self) -> tuple[int, ...]:
        """What tells the ranks' dropout apart."""
        return () if self.alone else (self.rank,)

    def share(self, total: int, *, unit: int = 1) -> slice:
        """This rank's part of so many rows: contiguous, in whole units, the parts alike up to one unit."""
        return self._shares(total, unit)[self.rank]

    def _shares(self, total: int, unit: int) -> list[slice]:
        units = -(-total // unit)
        ends = [min(total, unit * (units * rank // self.size)) for rank in range(self.size + 1)]
        return [slice(start, stop) for start, stop in pairwise(ends)]

    def require_rows(self, batch_size: int, *, pieces: int) -> None:
        """Raise ValueError where a rank would have no row, or fewer than the pieces its slice is cut into."""
        if not self.alone and batch_size // self.size < pieces:
            raise ValueError(
                f"a batch of {batch_size} in {pieces} piece{'s' * (pieces > 1)} cannot be shared by {self.size} ranks: "
                "each needs a row for each piece. Use fewer ranks, or a larger batch_size."
            )

    # What a step exchanges

    def gather_outputs(self, outputs: Tensor, total: int, *, views: int = 1) -> Tensor:
        """The outputs of the whole batch, (total, ...) or view by view (views * total, D), with their gradient."""
        if self.alone:
            return outputs
        if views == 1:
            whole: Tensor = _GatherRows.apply(outputs, self, total)
            return whole
        width = outputs.shape[1]
        by_image = outputs.reshape(views, -1, width).transpose(0, 1).reshape(-1, views * width)
        gathered: Tensor = _GatherRows.apply(by_image, self, total)
        return gathered.reshape(total, views, width).transpose(0, 1).reshape(views * total, width)

    def sum_gradients(self, parameters: Iterable[nn.Parameter], *, check: bool) -> None:
        """Gradients of the network summed over the ranks, in one message for each type of number.

        check: first make sure that the same parameters have a gradient on every rank.
        """
        if self.alone:
            return
        parameters = list(parameters)
        if check:
            has_one = "".join("01"[parameter.grad is not None] for parameter in parameters)
            self.require_same("which parameters have a gradient", has_one)
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for parameter in parameters:
            if parameter.grad is not None:
                by_type.setdefault(parameter.grad.dtype, []).append(parameter.grad)
        for gradients in by_type.values():
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            self.add_up(flat, "gradients")
            pieces = torch.split(flat, [gradient.numel() for gradient in gradients])
            for gradient, piece in zip(gradients, pieces, strict=True):
                gradient.copy_(piece.view(gradient.shape))

    def global_statistics(self) -> AbstractContextManager[object]:
        """Inside the block, batch normalisation takes its statistics over all ranks."""
        return nullcontext() if self.alone else GlobalBatchNorm(self)

    def ask_stop(self, wanted: bool) -> None:
        """Before a step: begin to find out whether any rank wants to stop."""
        if not self.alone:
            flag = torch.tensor([int(wanted)], dtype=torch.int32)
            self._count("flags", flag)
            with self._contact():
                work = distributed.all_reduce(flag, distributed.ReduceOp.MAX, group=self._group, async_op=True)
            assert work is not None
            self._stop = flag, work

    def stop_asked(self) -> bool:
        """After the step: whether any rank wanted to stop before it; the same on all of them."""
        if self._stop is not None:
            flag, work = self._stop
            with self._contact():
                work.wait()
            self._stop, self._stop_answer = None, bool(flag.item())
        return self._stop_answer

    def any_wants(self, wanted: bool) -> bool:
        """Whether any rank wants to stop, asked and answered at once; the same on all of them."""
        flag = torch.tensor([int(wanted)], dtype=torch.int32)
        if not self.alone:
            with self._contact():
                distributed.all_reduce(flag, distributed.ReduceOp.MAX, group=self._group)
        return bool(flag.item())

    # Exchanges without gradient

    def gather(self, own: Tensor, total: int, *, unit: int = 1, what: str) -> Tensor:
        """Rows of all ranks in order, (total, ...), where each holds its `share`."""
        if self.alone:
            return own
        shares = self._shares(total, unit)
        sizes = [share.stop - share.start for share in shares]
        padded = own.new_zeros(max(sizes), *own.shape[1:])  # a collective wants equal lengths
        padded[: len(own)] = own
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        self._count(what, *parts)
        with self._contact():
            distributed.all_gather(parts, padded, group=self._group_for(padded))
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def add_up(self, values: Tensor, what: str) -> None:
        """The sum over all ranks, in place."""
        self._count(what, values)
        with self._contact():
            distributed.all_reduce(values, group=self._group_for(values))

    def send_weights(self, model: nn.Module) -> None:
        """The leader's weights and buffers to all."""
        for tensor in () if self.alone else model.state_dict().values():
            sent = tensor.contiguous()
            with self._contact():
                distributed.broadcast(sent, 0, group=self._group_for(sent))
            tensor.copy_(sent)

    def told(self, what: T) -> T:
        """What the leader says; what others would say is not asked for."""
        said = [what]
        if not self.alone:
            with self._contact():
                distributed.broadcast_object_list(said, 0, group=self._group)
        return said[0]

    def by_leader(self, action: Callable[[], T]) -> T:
        """The leader does it, all of them get the result; bad input and a full disk end all ranks alike."""
        result: Any = None
        error: Exception | None = None
        if self.leads:
            try:
                result = action()
            except (ValueError, OSError) as found:
                error = found
        failed, result = self.told((None if error is None else str(error), result))
        if error is not None:
            raise error
        if failed is not None:
            raise ValueError(failed)
        done: T = result
        return done

    def require_same(self, what: str, value: str) -> None:
        """Raise ValueError on all ranks unless they agree."""
        if self.alone:
            return
        found: list[Any] = [None] * self.size
        with self._contact():
            distributed.all_gather_object(found, value, group=self._group)
        others = [rank for rank in range(self.size) if found[rank] != found[0]]
        if others:
            raise ValueError(
                f"rank {', '.join(map(str, others))} differ{'s' * (len(others) == 1)} from rank 0 in {what}: start all "
                "ranks with the same command, versions and kind of GPU, and a run folder and data that all of them see."
            )

    def wait(self) -> None:
        """Until all ranks are here."""
        if not self.alone:
            with self._contact():
                distributed.monitored_barrier(self._group, timeout=TIMEOUT)

    def _group_for(self, tensor: Tensor) -> distributed.ProcessGroup | None:
        return self._group if tensor.device.type == "cpu" else None

    def _count(self, what: str, *results: Tensor) -> None:
        self.exchanged[what] += sum(result.numel() * result.element_size() for result in results)

    @contextmanager
    def _contact(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            reason = re.sub(r"^\[\S*\] *", "", str(error).strip().splitlines()[0]).split(". ")[0]  # no line of C++
            raise TrainingStopped(
                f"rank {self.rank} of {self.size} lost another rank ({reason}). That rank's own message says why. The "
                "last checkpoint is kept: run the same command again to resume (torchrun --max-restarts does so)."
            ) from error


ALONE = Ranks()


class _GatherRows(torch.autograd.Function):
    """Rows of all ranks; backward takes the own ones out of the gradient: every rank has the whole batch's loss."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, ranks: Ranks, total: int) -> Tensor:
        ctx.share = ranks.share(total)
        return ranks.gather(own, total, what="outputs")

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0][ctx.share], None, None


def several_ranks() -> bool:
    """Whether other processes train the same run."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


@contextmanager
def all_ranks() -> Iterator[Ranks]:
    """The ranks of the process group there is, or `ALONE`.

    Left by an error, the exchange is closed, so that the other ranks notice at once instead of waiting for ever.
    """
    if not several_ranks():
        yield ALONE
        return
    group = distributed.new_group(backend="gloo", timeout=TIMEOUT)
    assert isinstance(group, distributed.ProcessGroup)
    ranks = Ranks(group)
    try:
        ranks.wait()  # one that left before another had connected would break that one's connection
        yield ranks
    finally:
        distributed.destroy_process_group(group)


def agreed(value: T) -> T:
    """What the leader of the process group says; the value itself where there is none."""
    with all_ranks() as ranks:
        return ranks.told(value)


def join_ranks(device: torch.device) -> bool:
    """Joins the processes that torchrun has started, once; gives whether this one is to speak and write."""
    if not distributed.is_available():
        return True
    if not distributed.is_initialized():
        if not started_by_torchrun():
            return True
        store, rank, size = next(iter(rendezvous("env://", timeout=TIMEOUT)))
        options = {"store": fresh_store(store, rank, size), "rank": rank, "world_size": size, "timeout": TIMEOUT}
        if device.type == "cuda":
            torch.cuda.set_device(device)
            distributed.init_process_group("nccl", device_id=device, **options)
        else:
            distributed.init_process_group("gloo", **options)
        atexit.register(distributed.destroy_process_group)  # not sooner: a second group would meet the first one's keys
    return distributed.get_rank() == 0


def fresh_store(store: Store, rank: int, size: int) -> Store:
    """A part of the store that holds nothing yet, the same for all ranks of this start.

    torchrun keeps one store over its restarts, and the addresses of processes that are gone with it; its count of
    restarts is not the same on all machines. So each rank says hello with a name of its own, made up anew, until the
    leader has answered to just that name, and the leader answers until each rank has been heard in the new part.
    """
    if rank:
        own = uuid.uuid4().hex
        store.set(f"deepauc/hello/{rank}", own)
        answer = f"deepauc/answer/{rank}/{own}"
        store.wait([answer], TIMEOUT)
        new = store.get(answer).decode()
        store.set(f"{new}/here/{rank}", "")
        return PrefixStore(new, store)
    new = f"deepauc/{uuid.uuid4().hex}"
    missing = list(range(1, size))
    until = time.monotonic() + TIMEOUT.total_seconds()
    while missing:
        for other in missing:
            if store.check([f"deepauc/hello/{other}"]):
                name = store.get(f"deepauc/hello/{other}").decode()
                store.set(f"deepauc/answer/{other}/{name}", new)
        missing = [other for other in missing if not store.check([f"{new}/here/{other}"])]
        if time.monotonic() > until:
            raise TrainingStopped(f"rank {', '.join(map(str, missing))} did not start within {TIMEOUT}.")
        time.sleep(0.01)
    return PrefixStore(new, store)


def started_by_torchrun() -> bool:
    return distributed.is_torchelastic_launched() and int(os.environ.get("WORLD_SIZE", "1")) > 1


def own_gpu(device: torch.device) -> torch.device:
    """`cuda` without a number is, on the r-th process of a machine, its r-th GPU."""
    if device.type == "cuda" and device.index is None and started_by_torchrun():
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return device


def digest(tensors: Sequence[Tensor]) -> str:
    """SHA-256 of their values."""
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()
