"""A server of our own that speaks openpi's protocol, for openpi's own client: metadata first, then reply after reply."""

import threading
import traceback
from contextlib import contextmanager
from typing import Any

from openpi_client import msgpack_numpy
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve


@contextmanager
def serving(policy: Any):
    """The port of a server that runs within the block."""

    def answer(connection: ServerConnection) -> None:
        packer = msgpack_numpy.Packer()
        connection.send(packer.pack(policy.metadata))
        try:
            while True:
                reply = policy.infer(msgpack_numpy.unpackb(connection.recv()))
                connection.send(packer.pack({**reply, "server_timing": {"infer_ms": 1.0}}))
        except ConnectionClosed:
            pass
        except Exception:
            connection.send(traceback.format_exc())

    with serve(answer, "127.0.0.1", 0, compression=None, max_size=None) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.socket.getsockname()[1]
        finally:
            server.shutdown()
            thread.join()
