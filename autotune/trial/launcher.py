"""Start the ranks of one trial: torchrun, tied to its parent and listening on loopback only.

`python -m autotune.trial.launcher FOLDER -- TORCHRUN_ARGUMENTS`. Runs torchrun's own `main` in
this process and writes the ranks' exit codes, which torchrun knows, to `ranks/exit.json`.
"""

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from autotune.contract import RANKS_DIR, write_json
from autotune.trial.parent import end_with_parent

EXIT_FILE = "exit.json"
COORDINATOR_ENV = "AUTOTUNE_COORDINATOR_PID"


def main() -> None:
    """Run torchrun until every rank has ended."""
    end_with_parent(int(os.environ[COORDINATOR_ENV]))
    folder, arguments = Path(sys.argv[1]), sys.argv[3:]

    from torch.distributed import run  # seconds to import: only after the line above
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    _listen_on_loopback()
    try:
        run.main(arguments)
    except ChildFailedError as error:
        codes = {str(rank): failure.exitcode for rank, failure in error.failures.items()}
        write_json(folder / RANKS_DIR / EXIT_FILE, codes)
        sys.exit(1)
    except SystemExit:
        raise
    except BaseException as error:
        print(f"launcher: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(2)


def listen_on(port: int, address: str = "127.0.0.1") -> socket.socket:
    """Where ranks find one another: a socket on one address, loopback's, and nowhere else.

    Raises:
        OSError: The address is not of this machine, or somebody else has the port.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=128)


def _listen_on_loopback() -> None:
    """Make torchrun's key-value store listen on 127.0.0.1; torch binds it to every interface."""
    import torch.distributed as dist
    from torch.distributed.elastic.rendezvous import static_tcp_rendezvous

    class LoopbackStore(dist.TCPStore):  # type: ignore[misc]  # mypy does not read torch
        def __init__(self, host: str, port: int, *args: Any, **kwargs: Any) -> None:
            if kwargs.get("is_master", args[1] if len(args) > 1 else False):
                kwargs["master_listen_fd"] = listen_on(port).detach()
            super().__init__(host, port, *args, **kwargs)

    static_tcp_rendezvous.TCPStore = LoopbackStore


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the coordinator decides what Ctrl-C means
    main()
