"""Which short programs tell the version of an engine and of what lies under it, inside its container?

The last line that is not empty is the version. Nothing heavy is imported but where the figure is nowhere else.
"""


def package(name: str) -> tuple[str, ...]:
    """The version of an installed Python package."""
    return ("python3", "-c", f"import importlib.metadata as m; print(m.version({name!r}))")


def gpu_stack() -> dict[str, tuple[str, ...]]:
    """PyTorch, the CUDA it was built for, and NCCL twice: as compiled against, and as the loader finds it."""
    return {
        "torch": package("torch"),
        "cuda": ("python3", "-c", "import torch.version as v; print(v.cuda)"),
        "nccl_torch": (
            "python3",
            "-c",
            "import torch; print('.'.join(map(str, torch.cuda.nccl.version())))",
        ),
        "nccl_lib": ("python3", "-c", _NCCL),
    }


_NCCL = (
    "import ctypes as c;n=c.c_int();c.CDLL('libnccl.so.2').ncclGetVersion(c.byref(n));v=n.value;"
    "print(f'{v//10000}.{v//100%100}.{v%100}')"
)
"""``ncclGetVersion`` of the library that the loader finds: 2.27.3 is 22703 (nccl.h)."""
