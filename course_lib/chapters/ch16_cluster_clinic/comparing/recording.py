"""Recording the tensors of one update on each rank, and reading them back."""

import re
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from course_lib.problem import Problem


@dataclass(frozen=True)
class Entry:
    """A tensor of one rank; `terms` is the number of terms summed for each element.

    `times`: how often it was computed, as in several micro-batches; `value` is the first.
    """

    kind: str
    name: str  # of the module or parameter
    value: Tensor
    terms: int
    times: int = 1

    @property
    def key(self) -> tuple[str, str]:
        """Its kind and name, which identify the tensor in every run."""
        return self.kind, self.name


def read(folder: Path) -> list[dict[tuple[str, str], Entry]]:
    """The entries of each rank, by key, in the order in which they were computed.

    Raises Problem for a folder without a run, or with a run that lacks ranks.
    """
    pages = [_page(folder, 0)]
    pages += [_page(folder, rank) for rank in range(1, pages[0]["ranks"])]
    if any(page["ranks"] != len(pages) for page in pages):
        raise Problem(f"{folder} mixes runs on different numbers of ranks: record into a new one")
    runs = [[Entry(**fields) for fields in page["entries"]] for page in pages]
    return [{entry.key: entry for entry in entries} for entries in runs]


def _page(folder: Path, rank: int) -> dict[str, Any]:
    path = folder / f"rank{rank}.pt"
    try:
        page: dict[str, Any] = torch.load(path, weights_only=True)
        if set(page) == {"ranks", "entries"}:
            return page
    except FileNotFoundError:
        raise Problem(
            f"{folder} has no {path.name}: give a folder that comparing.record, or "
            "`course demo one_update --folder`, has written on all ranks"
        ) from None
    except Exception:  # any other file that torch cannot read
        pass
    raise Problem(f"{path} is no record of an update: record it again, into a new folder")


# Prefixes that wrappers add to the names of modules and parameters.
_WRAPPERS = re.compile(r"\b(module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


def record(model: nn.Module, folder: Path | str) -> "Recording":
    """A context manager that records one forward and backward pass of `model` in `folder`.

    Every rank calls it, and writes its own file. Inside, call `.loss(…)` with the loss. If a module
    is called several times, as with micro-batches, the first tensors are recorded; they are
    compared only with a run that called it as often. Weight gradients are those at the end. Raises
    Problem if the folder already has a record.
    """
    return Recording(model, Path(folder))


class Recording:
    """Records one update through hooks on every module and parameter."""

    def __init__(self, model: nn.Module, folder: Path) -> None:
        together = dist.is_available() and dist.is_initialized()
        self.rank, self.ranks = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)
        self.model, self.folder = model, folder
        self.entries: dict[tuple[str, str], Entry] = {}
        self.arrived: list[str] = []  # parameters, in the order in which gradients were accumulated
        self.outputs: list[Tensor] = []  # kept alive, to recognize an output seen before
        self.hooks: list[Any] = []
        if (folder / f"rank{self.rank}.pt").exists():
            raise Problem(f"{folder} has a record already: name a new folder, or remove it")

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.parameters = {_clean(name): p for name, p in self.model.named_parameters()}
        for name, parameter in self.parameters.items():
            self._keep("weight", name, parameter, 1)
            if parameter.requires_grad:
                hook: Any = parameter.register_post_accumulate_grad_hook
                self.hooks.append(hook(lambda _, name=name: self.arrived.append(name)))
        for name, module in self.model.named_modules():
            self.hooks.append(module.register_forward_hook(partial(self._output, _clean(name))))
        return self

    def loss(self, loss: Tensor) -> None:
        """Record the loss of this rank, a tensor with one element."""
        self._keep("loss", "", loss, 1)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for hook in self.hooks:
            hook.remove()
        if kind is None:
            rows = max((len(out.flatten(0, -2)) for out in self.outputs if out.ndim > 1), default=1)
            # Sharding libraries may set gradients without triggering the hook.
            for name in dict.fromkeys([*self.arrived, *self.parameters]):
                gradient = self.parameters[name].grad
                if gradient is not None:
                    self._keep("gradient of the weight", name, gradient, rows)
            entries = [asdict(entry) for entry in self.entries.values()]
            page = {"ranks": self.ranks, "entries": entries}
            torch.save(page, self.folder / f"rank{self.rank}.pt")

    def _output(self, name: str, module: nn.Module, _inputs: Any, output: Any) -> None:
        # Activation recomputation runs the forward pass again inside the backward pass: skip it.
        backward = torch._C._current_graph_task_id() >= 0  # as in torch.utils.checkpoint
        if backward or not isinstance(output, Tensor):
            return
        if any(output is other for other in self.outputs):  # a container returns its last module's
            return
        self.outputs.append(output)
        self._keep("output", name, output, _terms(module))
        if output.requires_grad:
            hook: Any = output.register_hook
            hook(partial(self._gradient, name))

    def _gradient(self, name: str, gradient: Tensor) -> None:
        self._keep("gradient of the output", name, gradient, gradient.shape[-1])

    def _keep(self, kind: str, name: str, value: Tensor, terms: int) -> None:
        if before := self.entries.get((kind, name)):
            self.entries[kind, name] = replace(before, times=before.times + 1)
        else:
            plain = value.full_tensor() if isinstance(value, DTensor) else value
            copy = plain.detach().cpu().clone()
            self.entries[kind, name] = Entry(kind, name, copy, max(1, terms))


def _terms(module: nn.Module) -> int:
    """The number of products summed for each element of the module's output."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or isinstance(module, nn.Embedding):
        return 1
    return weight.shape[-1]


def _clean(name: str) -> str:
    return _WRAPPERS.sub("", name + ".").rstrip(".")
