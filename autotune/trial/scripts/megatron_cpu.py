"""Let Megatron Core train on CPU ranks: what it asks of CUDA, the host answers.

Nothing that is measured so says anything about a GPU. It shows that a layout is legal, that its
ranks find one another, that it trains with the losses of one rank, and which of two layouts needs
more memory for its states. Tried with Megatron Core 0.14, 0.15, 0.16 and 0.19.

`torchrun ... megatron_cpu.py pretrain_gpt.py ARGUMENTS` trains so with a script of Megatron-LM.
"""

import contextlib
import ctypes
import functools
import importlib
import importlib.util
import logging
import os
import resource
import runpy
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

HOST = torch.device("cpu")
_IS_INSTALLED = "_stands_in_for_cuda"
_CAPABILITY = (8, 0)
"""A device that has bf16, so that Megatron does not refuse it."""
_MEMORY_BYTES = 2**34
_STACK_BYTES = 2**18
_ATTRIBUTES_BYTES = 64
"""Room for a pthread_attr_t: 56 bytes on 64-bit Linux (glibc, pthreadtypes-arch.h)."""

_WITH_TRITON = (
    "megatron.core.transformer.custom_layers.batch_invariant_kernels",
    "megatron.core.transformer.moe.paged_stash",
)
"""Modules that need triton. No layout asks for these kernels, and they are imported all the same:
the first by 0.16's scripts, the second from 0.18 on."""

_FACTORIES = (
    *("tensor", "as_tensor", "zeros", "ones", "empty", "full", "eye", "arange", "linspace"),
    *("rand", "randn", "randint", "randperm", "empty_strided"),
    *("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like"),
)
_METHODS_THAT_MAKE = ("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor")
_NOTHING_TO_DO = (
    *("synchronize", "empty_cache", "init", "set_stream", "set_device", "ipc_collect"),
    *("reset_peak_memory_stats", "reset_max_memory_allocated", "manual_seed_all"),
)
_HELD = (
    *("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"),
    "device_memory_used",
)


def install() -> None:
    """Put the host in CUDA's place in this process, once, before Megatron is imported."""
    if is_installed():
        return
    setattr(torch, _IS_INSTALLED, True)
    # Its fused functions would be compiled at the first step, for seconds.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    _answer_for_devices()
    _answer_for_cuda()
    _answer_for_nccl()
    if importlib.util.find_spec("triton") is None:
        sys.modules.update((name, _Kernels(name)) for name in _WITH_TRITON)
    # Megatron is astonished that its generator of the device is the host's, at every layer.
    logging.getLogger("megatron.core.tensor_parallel.random").setLevel(logging.ERROR)


class _Kernels(types.ModuleType):
    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _does_nothing()


def mend_megatron() -> None:
    """Replace, in Megatron's own modules, what only a GPU or NVIDIA's packages have."""
    config = importlib.import_module("megatron.core.transformer.transformer_config")
    _keep_outputs(config.TransformerConfig)
    norm = importlib.import_module("megatron.core.transformer.torch_norm").WrappedTorchNorm
    norm.__new__ = staticmethod(_norm)
    moe: Any = importlib.import_module("megatron.core.transformer.moe.moe_utils")
    if not hasattr(moe, "te_general_gemm"):
        moe.te_general_gemm = None
    dispatcher: Any = importlib.import_module("megatron.core.transformer.moe.token_dispatcher")
    for module in (moe, dispatcher):
        if hasattr(module, "maybe_move_tensor_to_cpu"):
            module.maybe_move_tensor_to_cpu = _on_host
    _mend_attention()
    _mend_latent_attention()
    _mend_expert_biases()
    _mend_recomputed_modules()


def is_installed() -> bool:
    """True if the host stands in CUDA's place in this process."""
    return getattr(torch, _IS_INSTALLED, False)


def prepare_checkout() -> None:
    """Give a checkout of Megatron-LM what it would compile or has to have installed.

    Called before anything of `megatron.training` is imported.
    """
    if importlib.util.find_spec("six") is None:
        # Its tokenizer of BERT asks it which Python this is, and nothing else.
        sys.modules["six"] = types.ModuleType("six")
        vars(sys.modules["six"]).update(PY2=False, PY3=True)
    datasets = importlib.import_module("megatron.core.datasets")
    if importlib.util.find_spec("megatron.core.datasets.helpers_cpp") is None:
        # The wheel has the extension that a checkout compiles for itself.
        others = (Path(entry, "megatron", "core", "datasets") for entry in sys.path)
        datasets.__path__.extend(str(other) for other in others if other.is_dir())


def mend_checkout() -> None:
    """Let a checkout compile nothing; called once `megatron.training` is imported."""
    if importlib.util.find_spec("megatron.core.datasets.helpers_cpp") is not None:
        helpers: Any = importlib.import_module("megatron.core.datasets.utils")
        helpers.compile_helpers = _does_nothing()
    with contextlib.suppress(ImportError):  # later releases have none
        kernels: Any = importlib.import_module("megatron.legacy.fused_kernels")
        kernels.load = _does_nothing()


def _keep_outputs(config: Any) -> None:
    """Let pipelines keep what they have sent until it is out of use.

    gloo may still be sending what Megatron would free: the next stage trains on other numbers,
    without an error.
    """
    check = config.__post_init__

    @functools.wraps(check)
    def checked(self: Any) -> None:
        check(self)
        self.deallocate_pipeline_outputs = False

    config.__post_init__ = checked


def _norm(
    _: Any, config: Any = None, hidden_size: int = 0, eps: float = 1e-5, **__: Any
) -> torch.nn.Module:
    """A norm of torch's, marked as Megatron marks its own.

    Megatron refuses torch's norms under sequence parallelism, since nobody marks their weights:
    their gradients would not be summed over the ranks that share the sequence.
    """
    kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
    norm = kind(hidden_size, eps=eps)
    for parameter in norm.parameters():
        parameter.sequence_parallel = config.sequence_parallel
    return norm


def _mend_attention() -> None:
    """Give the attention of the local layers what latent attention and GPT-OSS ask of it.

    Without it latent attention fails: `TypeError: DotProductAttention.__init__() got an unexpected
    keyword argument 'k_channels'`, and its output would be cut by the width of a key. Sinks are
    split over tensor parallel ranks and not marked so: the gradient norm would leave out those of
    all ranks but the first, without an error.
    """
    attention = importlib.import_module("megatron.core.transformer.dot_product_attention")
    backends: Any = importlib.import_module("megatron.core.models.backends")
    plain: Any = attention.DotProductAttention

    class HostAttention(plain):  # type: ignore[misc]
        def __init__(
            self, *args: Any, k_channels: Any = None, v_channels: Any = None, **kwargs: Any
        ) -> None:
            super().__init__(*args, **kwargs)
            if v_channels is not None:
                width = v_channels * self.num_attention_heads_per_partition
                self.hidden_size_per_partition = width
            sinks = getattr(self, "softmax_offset", None)
            if isinstance(sinks, torch.nn.Parameter):
                _mark_as_split(sinks)

    backends.LocalSpecProvider.core_attention = lambda _: HostAttention


def _mark_as_split(parameter: Any) -> None:
    """Say that each tensor parallel rank has a part of its own of a vector."""
    parameter.tensor_model_parallel = True
    parameter.partition_dim, parameter.partition_stride = 0, 1


def _mend_latent_attention() -> None:
    """Let every tensor parallel rank have the down projections of latent attention whole.

    So do the layers of Transformer Engine. The local ones split them, and with tp > 1 the gradient
    of the rotary part of the keys is not summed over the ranks: the model trains a little wrong,
    without an error. Besides, Megatron compares a layer with a class of Transformer Engine, which
    is None where that is not installed: `TypeError: isinstance() arg 2 must be a type`.
    """
    latent: Any = importlib.import_module("megatron.core.transformer.multi_latent_attention")
    specs: Any = importlib.import_module("megatron.core.models.gpt.gpt_layer_specs")
    latent.HAVE_TE = False
    latent.TELinear = _WholeLinear
    layer_spec = specs.get_gpt_layer_local_spec

    @functools.wraps(layer_spec)
    def with_whole_projections(*args: Any, **kwargs: Any) -> Any:
        spec = layer_spec(*args, **kwargs)
        parts = spec.submodules.self_attention.submodules
        for name in ("linear_q_down_proj", "linear_kv_down_proj"):
            if hasattr(parts, name):
                setattr(parts, name, _WholeLinear)
        return spec

    specs.get_gpt_layer_local_spec = with_whole_projections


class _WholeLinear(torch.nn.Module):  # type: ignore[misc]
    """A product with a matrix that tensor parallel ranks have whole, as Transformer Engine's."""

    def __init__(
        self, n_inputs: int, n_outputs: int, *, config: Any, init_method: Any, **_: Any
    ) -> None:
        super().__init__()
        whole = torch.empty(n_outputs, n_inputs, dtype=config.params_dtype)
        weight: Any = torch.nn.Parameter(whole)
        init_method(weight)
        # Each rank has a part of the sequence, and gradients are summed over them.
        weight.sequence_parallel = config.sequence_parallel
        self.weight = weight

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.nn.functional.linear(inputs, self.weight), None


def _mend_expert_biases() -> None:
    """Keep the biases of experts apart.

    Without it a mixture whose experts have biases fails with ep=1: `Output 0 of
    _ReduceFromModelParallelRegion is a view and is being modified inplace`. With tp > 1 those of
    the second product count as copies of one another, and are none where each rank has other
    experts: their gradients are summed over the ranks and left out of the norm, without an error.
    """
    layers: Any = importlib.import_module("megatron.core.tensor_parallel.layers")
    backends: Any = importlib.import_module("megatron.core.models.backends")
    plain: Any = layers.RowParallelLinear

    class HostExpertLinear(plain):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if self.bias is not None:
                self.bias.sequence_parallel = False
                _mark_as_split(self.bias)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            outputs, bias = super().forward(*args, **kwargs)
            return (outputs if bias is None else outputs.clone()), bias

    modules = backends.LocalSpecProvider.grouped_mlp_modules

    @functools.wraps(modules)
    def with_host_linear(*args: Any, **kwargs: Any) -> Any:
        module, parts = modules(*args, **kwargs)
        if parts is not None:
            parts.linear_fc2 = HostExpertLinear
        return module, parts

    backends.LocalSpecProvider.grouped_mlp_modules = with_host_linear


def _mend_recomputed_modules() -> None:
    """Let norms and activations of experts be computed again without Transformer Engine.

    Megatron takes `fp8=False` for fp8: `NameError: name 'FP8GlobalStateManager' is not defined`.
    """
    random: Any = importlib.import_module("megatron.core.tensor_parallel.random")
    checkpoint = random.CheckpointWithoutOutput
    make = checkpoint.__init__

    @functools.wraps(make)
    def made(self: Any, fp8: Any = None, *args: Any, **kwargs: Any) -> None:
        make(self, fp8 or None, *args, **kwargs)

    checkpoint.__init__ = made


def _on_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """What Megatron's function of that purpose does with a tensor of a GPU."""
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor


# ---------------------------------------------------------------- devices


def _answer_for_devices() -> None:
    for name in _FACTORIES:
        setattr(torch, name, _made_on_host(getattr(torch, name)))
    tensor: Any = torch.Tensor
    for name in _METHODS_THAT_MAKE:
        setattr(tensor, name, _made_on_host(getattr(tensor, name)))
    move, name_of_type = tensor.to, tensor.type

    def moved(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return move(self, *map(_device, args), **{k: _device(v) for k, v in kwargs.items()})

    def typed(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found = name_of_type(self, *args, **kwargs)
        # Megatron sorts parameters into optimizers by names such as torch.cuda.FloatTensor.
        return found.replace("torch.", "torch.cuda.") if isinstance(found, str) else found

    tensor.to, tensor.type = moved, typed
    tensor.cuda = tensor.pin_memory = _stays
    tensor.record_stream = _does_nothing()  # overlapped dispatch says which stream reads it
    module: Any = torch.nn.Module
    module.cuda = _stays


def _device(value: Any) -> Any:
    """The host where a value names a GPU, else the value."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    is_named = isinstance(value, str) and value.startswith("cuda")
    is_device = isinstance(value, torch.device) and value.type == "cuda"
    return HOST if is_number or is_named or is_device else value


def _made_on_host(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("pin_memory", None)
        if "device" in kwargs:
            kwargs["device"] = _device(kwargs["device"])
        return make(*args, **kwargs)

    return made


def _stays(self: Any, *_: Any, **__: Any) -> Any:
    return self


# ---------------------------------------------------------------- torch.cuda


class _HostStream:
    """A stream of a device that does everything at once."""

    device = HOST

    def __init__(self, *_: Any, **__: Any) -> None:
        self._at_s = 0.0

    def wait(self, *_: Any) -> None:
        pass

    wait_stream = wait_event = synchronize = wait

    def record_event(self, event: Any = None) -> Any:
        return event or _HostEvent()

    def query(self) -> bool:
        return True


class _HostEvent(_HostStream):
    def record(self, *_: Any) -> None:
        self._at_s = time.perf_counter()

    def elapsed_time(self, later: "_HostEvent") -> float:
        return (later._at_s - self._at_s) * 1e3  # milliseconds, as torch's


class _Generators:
    """Random numbers of every device: the host's, whatever the device is called."""

    def __getitem__(self, _: Any) -> torch.Generator:
        return torch.default_generator

    def __len__(self) -> int:
        return 1


def _answer_for_cuda() -> None:
    cuda: Any = torch.cuda
    for name in _NOTHING_TO_DO:
        setattr(cuda, name, _does_nothing())
    for name in _HELD:
        setattr(cuda, name, _tells_resident_bytes())
    cuda.is_available = lambda: True
    cuda.device_count = lambda: int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    cuda.current_device = lambda: HOST
    cuda.get_device_capability = lambda *_, **__: _CAPABILITY
    cuda.get_device_name = lambda *_, **__: "cpu"
    cuda.get_device_properties = lambda *_, **__: types.SimpleNamespace(
        name="cpu",
        major=_CAPABILITY[0],
        minor=_CAPABILITY[1],
        total_memory=_MEMORY_BYTES,
        multi_processor_count=1,
    )
    cuda.memory_stats = lambda *_, **__: {}
    cuda.mem_get_info = lambda *_, **__: (_MEMORY_BYTES, _MEMORY_BYTES)
    cuda.manual_seed = lambda seed: torch.default_generator.manual_seed(int(seed))
    for owner in (cuda, cuda.random):
        owner.get_rng_state = lambda *_, **__: torch.get_rng_state()
        owner.set_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    cuda.default_generators = _Generators()
    cuda._lazy_call = lambda call, **_: call()
    cuda.is_current_stream_capturing = lambda: False
    cuda.Stream, cuda.Event = _HostStream, _HostEvent
    only = _HostStream()
    cuda.current_stream = cuda.default_stream = lambda *_, **__: only
    cuda.stream, cuda.device = _is_a_context(), _is_a_context()
    cuda.nvtx = types.SimpleNamespace(
        range_push=_does_nothing(),
        range_pop=_does_nothing(),
        mark=_does_nothing(),
        range=_is_a_context(),
    )


# torch._dynamo has a rule for each name of torch.cuda, and refuses one function under two names.


def _does_nothing() -> Callable[..., None]:
    return lambda *_, **__: None


def _is_a_context() -> Callable[..., Any]:
    return lambda *_, **__: contextlib.nullcontext()


def _tells_resident_bytes() -> Callable[..., int]:
    return lambda *_, **__: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# ---------------------------------------------------------------- torch.distributed


@contextlib.contextmanager
def _small_stacks() -> Iterator[None]:
    """Give threads that start meanwhile a small stack.

    Each of Megatron's thirty groups has two threads, and their stacks of 8 MiB, which nothing
    fills, would be most of what a rank with a small model is seen to take.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "pthread_setattr_default_np"):  # glibc's
        yield
        return
    before, small = (ctypes.create_string_buffer(_ATTRIBUTES_BYTES) for _ in range(2))
    libc.pthread_getattr_default_np(before)
    libc.pthread_attr_init(small)
    libc.pthread_attr_setstacksize(small, ctypes.c_size_t(_STACK_BYTES))
    libc.pthread_setattr_default_np(small)
    try:
        yield
    finally:
        libc.pthread_setattr_default_np(before)


def _answer_for_nccl() -> None:
    """Make every group one of gloo's; a barrier names no device."""
    new_group, init, barrier = dist.new_group, dist.init_process_group, dist.barrier

    @functools.wraps(new_group)
    def new_gloo_group(*args: Any, **kwargs: Any) -> Any:
        passed = {k: v for k, v in kwargs.items() if k not in ("pg_options", "device_id")}
        with _small_stacks():
            return new_group(*args, **{**passed, "backend": "gloo"})

    @functools.wraps(init)
    def init_gloo(*_: Any, **kwargs: Any) -> Any:
        passed = {k: v for k, v in kwargs.items() if k not in ("pg_options", "device_id")}
        return init(**{**passed, "backend": "gloo"})

    @functools.wraps(barrier)
    def gloo_barrier(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_ids", None)
        return barrier(*args, **kwargs)

    for owner in (dist, dist.distributed_c10d):
        owner.new_group = new_gloo_group
        owner.init_process_group = init_gloo
        owner.barrier = gloo_barrier
    _answer_for_unequal_parts()


def _answer_for_unequal_parts() -> None:
    """Gather and scatter parts of different sizes, which gloo refuses and NCCL does not.

    `ProcessGroupGloo::allgather: invalid tensor size`: with etp and ep above 1 ranks share the
    rows of one another's experts, and each has as many as its router sent.
    """
    gather, scatter = dist.all_gather, dist.reduce_scatter

    def are_equal(parts: Any) -> bool:
        return len({part.shape for part in parts}) == 1

    @functools.wraps(gather)
    def gather_parts(tensor_list: Any, tensor: Any, group: Any = None, **kwargs: Any) -> Any:
        if are_equal(tensor_list):
            return gather(tensor_list, tensor, group=group, **kwargs)
        padded = tensor.new_zeros((max(map(len, tensor_list)), *tensor.shape[1:]))
        padded[: len(tensor)] = tensor
        found = [torch.empty_like(padded) for _ in tensor_list]
        gather(found, padded, group=group)
        for part, whole in zip(tensor_list, found, strict=True):
            part.copy_(whole[: len(part)])
        return None

    @functools.wraps(scatter)
    def scatter_parts(
        output: Any, input_list: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, **kwargs: Any
    ) -> Any:
        if are_equal(input_list):
            return scatter(output, input_list, op=op, group=group, **kwargs)
        whole = torch.cat(list(input_list))
        dist.all_reduce(whole, op=op, group=group)
        output.copy_(whole.split([len(part) for part in input_list])[dist.get_rank(group)])
        return None

    for owner in (dist, dist.distributed_c10d):
        owner.all_gather, owner.reduce_scatter = gather_parts, scatter_parts


# ---------------------------------------------------------------- a script of Megatron-LM


def main() -> None:
    """Run the script that the command line names, with the arguments that follow its name."""
    del sys.argv[0]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    install()
    prepare_checkout()
    mend_megatron()
    mend_checkout()
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
