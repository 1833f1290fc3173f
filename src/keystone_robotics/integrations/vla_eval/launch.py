"""Run a server script unchanged, except that its server class takes the argument `keystone`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

from vla_eval.model_servers import serve

from keystone_robotics.errors import KeystoneError
from keystone_robotics.integrations.vla_eval.server import wrap_server


def serve_script(path: str | Path) -> None:
    """Run a vla-eval server script with the arguments of this process; `run_server` gets the wrapped class.

    User errors end the process with one line on stderr and exit code 2.
    """
    script = Path(path)
    served: list[type] = []
    run_server = serve.run_server

    def run_wrapped(server_class: Any) -> None:
        served.append(server_class)
        run_server(wrap_server(server_class))

    serve.run_server = run_wrapped
    sys.argv[0] = str(script)
    sys.path.insert(0, str(script.parent))  # as Python does: a script may import modules of its folder
    try:
        runpy.run_path(str(script), run_name="__main__")
        if not served:
            raise KeystoneError(
                f"{script} did not start a server: expected a vla-eval server script, which ends with "
                "run_server(TheServerClass) from vla_eval.model_servers.serve"
            )
    except KeystoneError as error:
        sys.stderr.write(f"keystone: {error}\n")
        raise SystemExit(2) from None
    finally:
        serve.run_server = run_server
        sys.path.remove(str(script.parent))
