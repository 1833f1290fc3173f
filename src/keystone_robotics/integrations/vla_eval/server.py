"""A vla-eval server class with the additional argument `keystone`, which attaches KeyStone to its policy."""

from __future__ import annotations

import logging
from typing import Any

from vla_eval.model_servers import serve as vla_eval_serve
from vla_eval.model_servers.base import ModelServer, SessionContext
from vla_eval.model_servers.predict import PredictModelServer

from keystone_robotics.errors import KeystoneError
from keystone_robotics.integrations.vla_eval.guard import candidates, install
from keystone_robotics.integrations.vla_eval.options import ServeOptions
from keystone_robotics.integrations.vla_eval.serving import Serving
from keystone_robotics.network import read_token

log = logging.getLogger("keystone")


class KeystoneServer:
    """Mixin for `ModelServer` subclasses: attaches when the model is loaded, and allows changing K."""

    _keystone_serving: Serving | None = None

    def __init__(self, *args: Any, keystone: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Load the model as the server does, then attach.

        Args:
            keystone: options, see docs/vla-eval.md; None disables KeyStone.
        """
        # wrong options are reported before weights are loaded
        options = None if keystone is None else ServeOptions.parse(keystone)
        token = read_token(options.token_file) if options and options.token_file else None
        super().__init__(*args, **kwargs)
        if options is not None:
            self._keystone_serving = Serving(options, token)
            self._keystone_serving.attach(self)

    @property
    def keystone_k(self) -> int | str:
        """Candidates per round, "auto" before it is measured; ``GET /config?keystone_k=8`` sets it."""
        if self._keystone_serving is None:
            raise AttributeError("KeyStone is off: the server was started without the argument keystone")
        return self._keystone_serving.k

    @keystone_k.setter
    def keystone_k(self, value: int) -> None:
        if self._keystone_serving is None:
            raise AttributeError("KeyStone is off: the server was started without the argument keystone")
        self._keystone_serving.k = value

    async def on_episode_start(self, config: dict[str, Any], ctx: SessionContext) -> None:
        """Record the episode of the session, for the seeds and the log."""
        if self._keystone_serving is not None:
            self._keystone_serving.begin(config, ctx)
        await super().on_episode_start(config, ctx)  # type: ignore[misc]


class KeystonePredictServer(KeystoneServer):
    """The same for servers with `predict` and `predict_batch`."""

    def predict(self, obs: Any, ctx: SessionContext) -> Any:
        """The server's answer, with the selection."""
        predict = super().predict  # type: ignore[misc]
        if self._keystone_serving is None:
            return predict(obs, ctx)
        (answer,) = self._keystone_serving.answer(self, lambda: [predict(obs, ctx)], [ctx])
        return answer

    def predict_batch(self, obs_batch: list[Any], ctx_batch: list[SessionContext]) -> list[Any]:
        """The same for several sessions at once."""
        predict_batch = super().predict_batch  # type: ignore[misc]
        if self._keystone_serving is None:
            return list(predict_batch(obs_batch, ctx_batch))
        return self._keystone_serving.answer(self, lambda: predict_batch(obs_batch, ctx_batch), ctx_batch)


def wrap_server(server_class: type[ModelServer]) -> type[ModelServer]:
    """A subclass of a server class whose constructor takes `keystone`. Without the argument, the server is unchanged.

    Raises:
        KeystoneError: if this is not a server class.
    """
    if not (isinstance(server_class, type) and issubclass(server_class, ModelServer)):
        raise KeystoneError(f"{server_class!r} is not a server class: expected a subclass of vla_eval's ModelServer")
    if issubclass(server_class, KeystoneServer):
        return server_class
    _allow_changing_k()
    install()
    front = KeystonePredictServer if issubclass(server_class, PredictModelServer) else KeystoneServer
    namespace = {"__module__": server_class.__module__, "__doc__": server_class.__doc__}
    return type(f"KeyStone{server_class.__name__}", (front, server_class), namespace)


def _allow_changing_k() -> None:
    """``GET /config?keystone_k=8``: vla-eval converts the text, answers 422 if that fails, and sets the attribute."""
    changeable = getattr(vla_eval_serve, "_CONFIG_WHITELIST", None)
    if changeable is None:
        log.warning("KeyStone: this version of vla-eval has no _CONFIG_WHITELIST: /config?keystone_k= will not work")
        return
    changeable["keystone_k"] = candidates
