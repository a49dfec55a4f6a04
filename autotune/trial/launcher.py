"""Start the ranks of one trial on one node: torchrun, tied to its parent and on one address only.

`python -m autotune.trial.launcher FOLDER NODE ADDRESS -- TORCHRUN_ARGUMENTS`. Runs torchrun's own
`main` in this process and writes the exit codes of the node's ranks, which torchrun knows, to
`ranks/exit_NODE.json`.
"""

import ctypes
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from autotune.contract import PARENT_ENV, RANKS_DIR, write_json
from autotune.trial.descent import adopt_orphans, end_all_below

EXIT_FILE = "exit_{node:02d}.json"
LOOPBACK = "127.0.0.1"
"""Where the ranks of one node find one another: no other machine reaches it."""
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run torchrun until every rank of this node has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the coordinator decides what Ctrl-C means
    end_with_parent(int(os.environ[PARENT_ENV]))
    adopt_orphans()
    os.environ[PARENT_ENV] = str(os.getpid())  # as its ranks find it
    folder, node, address, _, *arguments = sys.argv[1:]

    from torch.distributed import run  # seconds to import: only after the line above
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    _listen_on(address)
    try:
        run.main(arguments)
    except ChildFailedError as error:
        codes = {str(rank): failure.exitcode for rank, failure in error.failures.items()}
        write_json(Path(folder) / RANKS_DIR / EXIT_FILE.format(node=int(node)), codes)
        sys.exit(1)
    except SystemExit:
        raise
    except BaseException as error:
        print(f"launcher: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(2)
    finally:
        end_all_below()


def end_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends.

    Killing torchrun alone leaves its ranks alive and holding their devices, so every process of a
    trial asks for this.

    Args:
        parent: Process id that the parent should have; if it is another one, the parent ended
            before this call and the process ends at once. Whoever adopts orphans, and the parent
            itself, may have any id.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        return  # not Linux: the sweep for orphans is what is left
    if os.getppid() != parent:
        os._exit(1)


def listen_on(port: int, address: str = LOOPBACK) -> socket.socket:
    """Where ranks find one another: a socket on one address, and nowhere else.

    Raises:
        OSError: The address is not of this machine, or somebody else has the port.
    """
    return socket.create_server((address, port), family=family_of(address), backlog=128)


def family_of(address: str) -> socket.AddressFamily:
    """Whether a numeric address is one of IPv6 or IPv4."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _listen_on(address: str) -> None:
    """Make torchrun's key-value store listen there; torch binds it to every interface."""
    import torch.distributed as dist
    from torch.distributed.elastic.rendezvous import static_tcp_rendezvous

    class BoundStore(dist.TCPStore):  # type: ignore[misc]  # mypy does not read torch
        def __init__(self, host: str, port: int, *args: Any, **kwargs: Any) -> None:
            if kwargs.get("is_master", args[1] if len(args) > 1 else False):
                kwargs["master_listen_fd"] = listen_on(port, address).detach()
            super().__init__(host, port, *args, **kwargs)

    static_tcp_rendezvous.TCPStore = BoundStore


if __name__ == "__main__":
    main()
