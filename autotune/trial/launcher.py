"""Start the ranks of one trial on one node: torchrun, tied to its parent and on one address only.

`python -m autotune.trial.launcher FOLDER NODE ADDRESS -- TORCHRUN_ARGUMENTS`. Runs torchrun's own
`main` in this process and writes the exit codes of the node's ranks, which torchrun knows, to
`ranks/exit_NODE.json`.
"""

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from autotune.contract import RANKS_DIR, write_json
from autotune.trial.parent import end_with_parent

EXIT_FILE = "exit_{node:02d}.json"
PARENT_ENV = "AUTOTUNE_PARENT_PID"
"""Process id of what starts a launcher or a warm template, which end with it."""
LOOPBACK = "127.0.0.1"
"""Where the ranks of one node find one another: no other machine reaches it."""


def main() -> None:
    """Run torchrun until every rank of this node has ended."""
    end_with_parent(int(os.environ[PARENT_ENV]))
    folder, node, address, arguments = (
        Path(sys.argv[1]),
        int(sys.argv[2]),
        sys.argv[3],
        sys.argv[5:],
    )

    from torch.distributed import run  # seconds to import: only after the line above
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    _listen_on(address)
    try:
        run.main(arguments)
    except ChildFailedError as error:
        codes = {str(rank): failure.exitcode for rank, failure in error.failures.items()}
        write_json(folder / RANKS_DIR / EXIT_FILE.format(node=node), codes)
        sys.exit(1)
    except SystemExit:
        raise
    except BaseException as error:
        print(f"launcher: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(2)


def listen_on(port: int, address: str = LOOPBACK) -> socket.socket:
    """Where ranks find one another: a socket on one address, and nowhere else.

    Raises:
        OSError: The address is not of this machine, or somebody else has the port.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=128)


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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the coordinator decides what Ctrl-C means
    main()
