"""A GPU that is not there: tensors that torch takes for ones on "cuda:0", with their numbers on the CPU.

Every operation arrives here, is judged by what CUDA would make of it, and is then computed on the CPU. So
whole trainings run with real numbers, and these things are found without hardware:

- operations that mix devices (as torch refuses them);
- the host waiting for the device: `.item()`, copies to the host, copies from memory that is not pinned,
  results whose size the host has to know (`nonzero`, masks as indices, ...);
- host memory read before an asynchronous copy into it has arrived: until then it is nan, or its smallest
  integer;
- a tensor that a stream reads or writes without waiting for the stream that wrote or read it before, and
  memory that is freed while a stream works on it of which its allocator does not know;
- in the capture of a graph: whatever makes the host wait, copies from the host, generators that the graph
  does not know. A replay repeats the operations that were recorded, on the tensors of then: what was no
  tensor stays as it was.

What it does not show: CUDA's own kernels and their numbers, cuDNN, TF32, speed, memory, compilation, NCCL,
the autograd engine's own streams. Autocast casts nothing (it asks in C++ whether a tensor is CUDA's, and the
engine, which asks alike, would want a driver): bf16 is computed as float32. Copies to the device are made at
once, and random numbers are the CPU's default generator's (or, of a generator for the device, a CPU's own).
"""

from __future__ import annotations

import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

ZOO = str(Path(__file__).resolve().parents[1] / "zoo")
HOST = -1
_CUDA = torch.device("cuda", 0)

_COUNTED = {
    "nonzero",
    "masked_select",
    "unique",
    "_unique",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "bincount",
}
"""Operations whose result has a size that the host must learn."""
_READ = {"_local_scalar_dense", "equal", "is_nonzero"}
_TOGETHER = {
    "cat",
    "stack",
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "index_copy",
    "index_copy_",
    "index_add",
    "index_add_",
}
_TOGETHER |= {
    "index_select",
    "gather",
    "scatter",
    "scatter_",
    "convolution",
    "native_batch_norm",
    "embedding",
}
"""Operations that refuse even single numbers of another device."""
_CREATED = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}


class GpuTensor(Tensor):
    """A tensor "on the GPU"; `inner` has the numbers."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> GpuTensor:
        # To the autograd engine, which would ask a driver for streams, it is of the meta device; to
        # everything that asks in Python, and to the dispatcher, of CUDA.
        length = inner.untyped_storage().nbytes() // inner.itemsize
        shape = torch.empty(length, dtype=inner.dtype, device="meta")
        shape = shape.as_strided(inner.size(), inner.stride(), inner.storage_offset())
        made: GpuTensor = Tensor._make_subclass(cls, shape, False, device_for_backend_keys=_CUDA)  # type: ignore
        made.inner = inner
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return _CUDA

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        return False

    def to(self, *args: Any, **kwargs: Any) -> Tensor:  # type: ignore[override]
        if args and isinstance(args[0], Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        copy = kwargs.pop("copy", False)
        device, dtype, soon, layout = torch._C._nn._parse_to(*args, **kwargs)  # type: ignore[attr-defined]
        copy_ = torch.ops.aten._to_copy.default
        if device is not None and device.type == "cpu":
            return copy_(self, dtype=dtype, device=device, non_blocking=soon)  # type: ignore[no-any-return]
        laid_out = layout in (None, torch.preserve_format) or self.is_contiguous(memory_format=layout)
        if dtype in (None, self.dtype) and laid_out and not copy:
            return self
        return copy_(self, dtype=dtype, memory_format=layout)  # type: ignore[no-any-return]

    def cpu(self, *_: Any) -> Tensor:  # type: ignore[override]
        return self.to("cpu")

    def cuda(self, *_: Any, **__: Any) -> Tensor:  # type: ignore[override]
        return self

    def tolist(self) -> Any:
        return self.to("cpu").tolist()

    def numpy(self, **_: Any) -> Any:  # type: ignore[override]
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    def __array__(self, *_: Any) -> Any:
        return self.numpy()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"GpuTensor({self.inner!r})"

    def record_stream(self, stream: Any) -> None:
        _gpu().note(self).recorded.add(stream.number)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _gpu().run(func, args, kwargs or {})


class Stream:
    """Of it only the order counts: what each stream, and the host, has seen of every other."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        gpu = _gpu()
        self.number = len(gpu.seen) - 1
        self.device = torch.device("cuda", 0)
        gpu.seen[self.number] = {}

    def wait_stream(self, other: Stream) -> None:
        _gpu().learn(self.number, _gpu().seen[other.number])

    def wait_event(self, event: Event) -> None:
        _gpu().learn(self.number, event.seen)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        _gpu().wait("Stream.synchronize", self.number)

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return _gpu().capture is not None


class Event:
    """What its stream had seen when it was recorded. The first look says that it has not come yet."""

    def __init__(self, **_: Any) -> None:
        self.seen: dict[int, int] = {}
        self.looks = 0

    def record(self, stream: Stream | None = None) -> None:
        gpu = _gpu()
        self.seen = dict(gpu.seen[(stream or gpu.current).number])

    def wait(self, stream: Stream | None = None) -> None:
        (stream or _gpu().current).wait_event(self)

    def query(self) -> bool:
        self.looks += 1
        if self.looks > 1:
            _gpu().learn(HOST, self.seen)
        return self.looks > 1

    def synchronize(self) -> None:
        _gpu().wait("Event.synchronize", seen=self.seen)

    def elapsed_time(self, _other: Event) -> float:
        return 1.0


class Generator(torch.Generator):
    """A generator "of the GPU"."""

    def __new__(cls, device: Any = "cpu") -> torch.Generator:  # type: ignore[misc]
        if torch.device(device).type == "cpu":
            return _GENERATOR()
        return super().__new__(cls)

    def __init__(self, device: Any = "cpu") -> None:
        pass

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 0)


_GENERATOR = torch.Generator


class Memory:
    """What is known of one piece of the device's memory."""

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.written: tuple[int, int] = (owner, 0)
        self.used: dict[int, int] = {}
        """By stream the last use."""
        self.recorded: set[int] = set()


class Graph:
    """Stands in for `torch.cuda.CUDAGraph`: keeps the operations of a capture, and does them again."""

    def __init__(self, keep_graph: bool = False) -> None:
        self.operations: list[tuple[Any, Any, Any, Any]] = []
        self.generators: list[torch.Generator] = []
        self.replays = 0
        _gpu().graphs.append(self)

    def register_generator_state(self, generator: torch.Generator) -> None:
        self.generators.append(generator)

    def knows(self, generator: torch.Generator | None) -> bool:
        """Whether a capture may draw from it; another object may stand for the same one."""
        return generator is None or generator._cdata in {each._cdata for each in self.generators}

    def replay(self) -> None:
        gpu = _gpu()
        assert gpu.capture is None
        self.replays += 1
        for func, args, kwargs, outs in self.operations:
            gpu.touch(_tensors((args, kwargs)), _written(func, args, kwargs), [])
            done = func(*args, **kwargs)
            for old, new in zip(_tensors(outs), _tensors(done), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)

    def pool(self) -> tuple[int, int]:
        return (0, 1)

    def reset(self) -> None:
        self.operations = []


class Gpu(TorchDispatchMode):
    """The device.

    Attributes:
        waits: where the host waited, or copied from memory that is not pinned, as texts.
        faults: of streams and memory, as texts.
        graphs: captured so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.faults: list[str] = []
        self.graphs: list[Graph] = []
        self.seen: dict[int, dict[int, int]] = {HOST: {}, 0: {}}
        self.clock = 0
        self.memories: dict[int, Memory] = {}
        self.freed: list[tuple[int, dict[int, int]]] = []
        self.pending: list[tuple[int, int, Tensor, Tensor]] = []
        self.pinned: dict[int, Tensor] = {}
        self.capture: Graph | None = None
        self.changed: dict[int, tuple[Tensor, Tensor]] = {}
        self.born: set[int] = set()
        self.strict = "default"
        self.operations = 0
        self.current: Stream = None  # type: ignore[assignment]

    # --- order

    def learn(self, who: int, what: dict[int, int]) -> None:
        mine = self.seen[who]
        for stream, stamp in what.items():
            mine[stream] = max(mine.get(stream, 0), stamp)
        if who == HOST:
            arrived = [each for each in self.pending if each[1] <= mine.get(each[0], 0)]
            self.pending = [each for each in self.pending if each[1] > mine.get(each[0], 0)]
            for _, _, host, value in arrived:
                host.copy_(value)

    def wait(self, what: str, stream: int | None = None, seen: dict[int, int] | None = None) -> None:
        """The host waits: for a stream, an event, or everything."""
        self.waits.append(f"{what} {_where()}")
        if self.capture is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {what}")
        if self.strict == "error":
            raise RuntimeError(f"called a synchronizing CUDA operation: {what}")
        if seen is None:
            known = [self.seen[stream]] if stream is not None else [*self.seen.values()]
            seen = {s: max(each.get(s, 0) for each in known) for each in known for s in each}
        self.learn(HOST, seen)

    def note(self, tensor: GpuTensor) -> Memory:
        return self._memory(tensor.inner)

    def _memory(self, inner: Tensor) -> Memory:
        storage = inner.untyped_storage()
        key = storage._cdata
        found = self.memories.get(key)
        if found is None:
            found = self.memories[key] = Memory(self.current.number)
            weakref.finalize(storage, self._freed, key)
        return found

    def _freed(self, key: int) -> None:
        memory = self.memories.pop(key, None)
        if memory is not None:
            known = [self.seen[each] for each in memory.recorded]
            self.freed.append(
                (
                    memory.owner,
                    {
                        stream: stamp
                        for stream, stamp in memory.used.items()
                        if stream != memory.owner and all(each.get(stream, 0) < stamp for each in known)
                    },
                )
            )

    def touch(self, read: list[Tensor], written: list[Tensor], made: list[Tensor]) -> None:
        """Note an operation of the current stream; tensors are the inner ones."""
        lie = {each.untyped_storage()._cdata for each in read}
        made = [each for each in made if each.untyped_storage()._cdata not in lie]
        if not written and not made:
            return  # a view
        number = self.current.number
        self.clock += 1
        mine = self.seen[number]
        self.learn(number, self.seen[HOST])
        mine[number] = self.clock
        for owner, uses in self.freed:  # what is freed is used again by the stream that it was made on
            if owner == number and any(mine.get(stream, 0) < stamp for stream, stamp in uses.items()):
                self.faults.append(f"stream {number} takes memory that another stream still uses {_where()}")
        self.freed = [each for each in self.freed if each[0] != number]
        for each in [*read, *written]:
            memory = self._memory(each)
            stream, stamp = memory.written
            if mine.get(stream, 0) < stamp:
                self.faults.append(
                    f"stream {number} reads what stream {stream} may not have written {_where()}"
                )
            memory.used[number] = self.clock
        for each in written:
            memory = self._memory(each)
            if any(mine.get(stream, 0) < stamp for stream, stamp in memory.used.items()):
                self.faults.append(f"stream {number} overwrites what another may still read {_where()}")
            memory.written = (number, self.clock)
        for each in made:
            memory = self._memory(each)
            memory.used[number] = self.clock
            memory.written = (number, self.clock)

    # --- operations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Judge and do one operation."""
        name = func.overloadpacket.__name__
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        here = any(isinstance(each, GpuTensor) for each in given)
        asked = kwargs.get("device")
        there = here if asked is None else torch.device(asked).type in _there()
        if not here and not there:
            return func(*args, **self._on_host(kwargs))
        self.operations += 1
        if name in {"_to_copy", "copy_"}:
            return self._copied(func, name, args, kwargs, there)
        if here and not there:  # like one of the device's, on the host
            return func(*tree_map(_inner, args), **{**self._on_host(kwargs), "device": torch.device("cpu")})
        if here:
            self._judge(func, name, args, given)
        inner = dict(kwargs)
        if "device" in inner:
            inner["device"] = torch.device("cpu")
        self._on_host(inner)
        if self.capture is not None and not self.capture.knows(inner.get("generator")):
            raise RuntimeError(f"capture: {name} draws from a generator that the graph does not know")
        return self._do(func, args, kwargs, inner)

    def _do(self, func: Any, args: Any, kwargs: Any, inner: dict[str, Any]) -> Any:
        """Compute on the CPU; what was written to is the tensor that was given."""
        plain, inner = tree_map(_inner, (args, inner))
        written = _written(func, plain, inner)
        if self.capture is not None:
            for each in written:
                storage = each.untyped_storage()
                if storage._cdata not in self.changed and storage._cdata not in self.born:
                    whole = each.detach().as_strided((storage.nbytes() // each.itemsize,), (1,), 0)
                    self.changed[storage._cdata] = (whole, whole.clone())
        outs = func(*plain, **inner)
        before, after = _tensors((args, kwargs)), _tensors((plain, inner))
        given = {id(now): was for was, now in zip(before, after, strict=True)}
        fresh = [each for each in _tensors(outs) if id(each) not in given]
        if func.overloadpacket.__name__ in _CREATED:  # nobody may count on what lies in fresh memory
            for each in fresh:
                if each.is_floating_point():
                    each.fill_(torch.nan)
        if self.capture is not None:
            self.capture.operations.append((func, plain, inner, outs))
            lie = {each.untyped_storage()._cdata for each in after}
            self.born |= {each.untyped_storage()._cdata for each in fresh} - lie
        else:
            read = [now for was, now in zip(before, after, strict=True) if isinstance(was, GpuTensor)]
            self.touch(read, written, fresh)

        def outer(each: Any) -> Any:
            if not isinstance(each, Tensor):
                return each
            return given[id(each)] if id(each) in given else GpuTensor(each)

        return tree_map(outer, outs)

    def _judge(self, func: Any, name: str, args: Any, given: list[Tensor]) -> None:
        others = [each for each in given if not isinstance(each, GpuTensor)]
        if name == "index" and others:
            self.wait("index on the host", self.current.number)
        elif any(each.dim() > 0 or name in _TOGETHER for each in others):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and "
                f"cpu ({name})"
            )
        indices = args[1] if name in {"index", "index_put", "index_put_"} else ()
        if any(each is not None and each.dtype in {torch.bool, torch.uint8} for each in indices):
            self.wait(f"{name} by a mask", self.current.number)
        if name in _READ or name in _COUNTED or func is torch.ops.aten.repeat_interleave.Tensor:
            self.wait(name, self.current.number)

    def _copied(self, func: Any, name: str, args: Any, kwargs: Any, there: bool) -> Any:
        source = args[1] if name == "copy_" else args[0]
        there = isinstance(args[0], GpuTensor) if name == "copy_" else there
        soon = kwargs.get("non_blocking", False) or (name == "copy_" and len(args) > 2 and args[2])
        inner = {**kwargs, **({"device": torch.device("cpu")} if "device" in kwargs else {})}
        inner.pop("pin_memory", None)
        if isinstance(source, GpuTensor) and there:
            if name == "_to_copy":
                inner.pop("device", None)
            return self._do(func, args, kwargs, inner)
        if there:  # from the host
            if self.capture is not None:
                raise RuntimeError(f"capture: {name} from the host, whose memory a replay would read again")
            if not (soon and self._is_pinned(source)) and source.numel():
                self.waits.append(f"{name} from memory that is not pinned, or blocking {_where()}")
                if self.strict == "error":
                    raise RuntimeError("called a synchronizing CUDA operation: a copy from the host")
            plain, inner = tree_map(_inner, (args, inner))
            outs = func(*plain, **inner) if name == "copy_" else func(*plain, **inner).clone()
            self.touch([], [plain[0]] if name == "copy_" else [], [] if name == "copy_" else [outs])
            return args[0] if name == "copy_" else GpuTensor(outs)
        assert isinstance(source, GpuTensor)  # to the host
        if self.capture is not None:
            raise RuntimeError(f"capture: {name} to the host")
        self.touch([source.inner], [], [])
        if name == "copy_":
            host, value = args[0], torch.empty_like(args[0]).copy_(source.inner)
            soon = soon and self._is_pinned(host)
        else:
            value = func(source.inner, **inner).clone()
            host = torch.empty_like(value)
            if soon:
                self._pin(host)
        if soon:
            host.fill_(torch.nan if host.is_floating_point() else _least(host.dtype))
            self.pending.append((self.current.number, self.clock, host, value))
        else:
            self.wait(f"{name} to the host", self.current.number)
            host.copy_(value)
        return host

    # --- the host's memory

    def _on_host(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        kwargs.pop("pin_memory", None)
        return kwargs

    def _pin(self, tensor: Tensor) -> Tensor:
        self.pinned[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def _is_pinned(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self.pinned

    # --- for tests

    @contextmanager
    def watched(self) -> Iterator[list[str]]:
        """Collect where the host waits inside the block."""
        before, self.waits = self.waits, []
        try:
            yield self.waits
        finally:
            self.waits = before + self.waits


_ACTIVE: list[Gpu] = []


def _gpu() -> Gpu:
    assert _ACTIVE, "a tensor of the pretended GPU has outlived it"
    return _ACTIVE[-1]


def _there() -> tuple[str, ...]:
    """Which types of device mean this one: where C++ makes tensors, in a backward pass, it is meta."""
    return ("cuda", "meta")


def _inner(each: Any) -> Any:
    return each.inner if isinstance(each, GpuTensor) else each


def _tensors(nested: Any) -> list[Tensor]:
    return [each for each in tree_leaves(nested) if isinstance(each, Tensor)]


def _least(dtype: torch.dtype) -> int:
    return 0 if dtype == torch.bool else torch.iinfo(dtype).min


@cache
def _places(func: Any) -> tuple[tuple[int, str], ...]:
    """Return which arguments an operation writes to."""
    schema = func._schema
    return tuple(
        (place, argument.name)
        for place, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    found = list[Tensor]()
    for place, name in _places(func):
        value = args[place] if place < len(args) else kwargs.get(name)
        found += _tensors(value)
    return found


def _where() -> str:
    for frame in reversed(traceback.extract_stack()):
        if frame.filename.startswith(ZOO):
            return f"(zoo{frame.filename[len(ZOO) :]}:{frame.lineno} {frame.line})"
    return ""


@contextmanager
def _capturing(
    graph: Graph, pool: Any = None, stream: Any = None, capture_error_mode: str = "global"
) -> Iterator[None]:
    gpu = _gpu()
    before = gpu.current
    gpu.wait("graph capture")
    drawn = torch.get_rng_state()  # only a replay moves the generators
    states = [(each, each.get_state()) for each in graph.generators]
    gpu.current = stream or Stream()
    gpu.capture, gpu.changed, gpu.born = graph, {}, set()
    try:
        yield
        gpu.current = before
    finally:  # after an error gpu.current stays the capture's: torch's ending of it fails before it leaves it
        gpu.capture = None
        torch.set_rng_state(drawn)
        for each, state in states:
            each.set_state(state)
        for whole, was in gpu.changed.values():  # a capture computes nothing
            whole.copy_(was)


@contextmanager
def _on_stream(stream: Stream | None) -> Iterator[None]:
    gpu = _gpu()
    before, gpu.current = gpu.current, stream or gpu.current
    try:
        yield
    finally:
        gpu.current = before


@contextmanager
def pretend_gpu() -> Iterator[Gpu]:
    """Make torch believe in one GPU inside the block."""
    gpu = Gpu()
    _ACTIVE.append(gpu)
    gpu.current = Stream.__new__(Stream)
    gpu.current.number, gpu.current.device = 0, torch.device("cuda", 0)
    default = gpu.current
    swap = torch.__future__.get_swap_module_params_on_conversion()
    patch = pytest.MonkeyPatch()

    def pinning(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def made(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Tensor:
            tensor = make(*args, **kwargs)
            return gpu._pin(tensor) if pin_memory else tensor

        return made

    of_host = Tensor.to

    def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """`Tensor.to`, which would ask a driver which device "cuda" is."""

        def numbered(each: Any) -> Any:
            if isinstance(each, GpuTensor):
                return (each.device, each.dtype)
            known = isinstance(each, (str, torch.device)) and torch.device(each).type == "cuda"
            return (_CUDA,) if known else (each,)

        given = [each for arg in args for each in numbered(arg)]
        return of_host(tensor, *given, **{name: numbered(each)[0] for name, each in kwargs.items()})

    of_numbers = torch.tensor

    def tensor(data: Any, *, device: Any = None, **kwargs: Any) -> Tensor:
        """`torch.tensor`, likewise."""
        made = of_numbers(data, **kwargs)
        return made if device is None else made.to(device)

    replaced: dict[Any, dict[str, Any]] = {
        torch: {
            "tensor": tensor,
            "Generator": Generator,
            "empty": pinning(torch.empty),
            "empty_like": pinning(torch.empty_like),
        },
        Tensor: {
            "to": to,
            "pin_memory": lambda self, *_: gpu._pin(self.clone()),
            "is_pinned": lambda self, *_: gpu._is_pinned(self),
        },
        torch.accelerator: {
            "is_available": lambda: True,
            "current_stream": lambda *_: gpu.current,
            "current_accelerator": lambda *_, **__: torch.device("cuda"),
        },
        torch.cuda: {
            "_lazy_init": lambda: None,
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "is_bf16_supported": lambda *_: True,
            "is_current_stream_capturing": lambda: gpu.capture is not None,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "set_device": lambda _: None,
            "set_stream": lambda stream: setattr(gpu, "current", stream),
            "get_device_name": lambda *_: "Pretended GPU",
            "get_device_capability": lambda *_: (9, 0),
            "mem_get_info": lambda *_: (64 << 30, 80 << 30),
            "memory_allocated": lambda *_: 1 << 30,
            "memory_reserved": lambda *_: 1 << 30,
            "reset_peak_memory_stats": lambda *_: None,
            "max_memory_allocated": lambda *_: 1 << 30,
            "empty_cache": lambda: None,
            "manual_seed": lambda _: None,
            "manual_seed_all": lambda _: None,
            "get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8),
            "set_rng_state": lambda *_: None,
            "synchronize": lambda *_: gpu.wait("synchronize"),
            "set_sync_debug_mode": lambda mode: setattr(gpu, "strict", mode),
            "Stream": Stream,
            "Event": Event,
            "stream": _on_stream,
            "current_stream": lambda *_: gpu.current,
            "default_stream": lambda *_: default,
            "CUDAGraph": Graph,
            "graph": _capturing,
        },
        torch.backends.cudnn: {"enabled": False},
    }
    try:
        for place, names in replaced.items():
            for name, value in names.items():
                patch.setattr(place, name, value)
        torch.__future__.set_swap_module_params_on_conversion(True)
        torch._C._set_only_lift_cpu_tensors(
            True
        )  # torch.tensor(..., device=...): a tensor of the CPU is copied
        with gpu:
            yield gpu
    finally:
        torch._C._set_only_lift_cpu_tensors(False)
        torch.__future__.set_swap_module_params_on_conversion(swap)
        patch.undo()
        _ACTIVE.remove(gpu)
