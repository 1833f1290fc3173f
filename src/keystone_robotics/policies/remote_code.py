"""Code that a checkpoint brings along, refused while LeRobot loads it.

Two places in LeRobot's loaders run code that a checkpoint names: the ``class`` of a processor step is imported and called, and
tokenizers are loaded with ``trust_remote_code``, whichever repository the checkpoint names. Both are guarded where they happen:
it does not matter which file says so, or how the loader came there (a policy of type ``keystone`` loads another checkpoint).
"""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Iterator
from typing import Any, NoReturn

from keystone_robotics.errors import KeystoneError
from keystone_robotics.versions import package_versions

#: One checkpoint at a time: what is replaced belongs to LeRobot and transformers.
_loading = threading.RLock()

RESOLVER, IMPORTER = "_resolve_step_class", "get_class_in_module"


@contextlib.contextmanager
def remote_code(path: str, trusted: bool) -> Iterator[None]:
    """Within this block LeRobot loads the checkpoint at ``path``; unless it is ``trusted``, only with code that is installed.

    Raises:
        KeystoneError: inside the block, before the code would run.
    """
    if trusted:
        yield
        return
    from lerobot.processor.pipeline import DataProcessorPipeline, ProcessorStep

    dynamic = _dynamic_modules()
    resolve, importer = vars(DataProcessorPipeline).get(RESOLVER), vars(dynamic).get(IMPORTER)
    if not isinstance(resolve, classmethod) or importer is None:
        raise KeystoneError(
            f"{path} was not loaded: {package_versions('lerobot', 'transformers')} run a checkpoint's code in another place "
            "than KeyStone guards; --trust-remote-code loads it without the guard"
        )

    def refuse(what: str) -> NoReturn:
        raise KeystoneError(
            f"{path} was not loaded: it names {what}, which would run code that LeRobot did not install; if you trust it, "
            "give --trust-remote-code"
        )

    def resolve_step(cls: Any, entry: dict[str, Any]) -> Any:
        name = None if "registry_name" in entry else entry.get("class")
        if name is not None and not (isinstance(name, str) and name.startswith("lerobot.")):
            refuse(f"the processor step {name!r}")
        found = resolve.__func__(cls, entry)  # imports one of LeRobot's modules
        if name is not None and not (isinstance(found[0], type) and issubclass(found[0], ProcessorStep)):
            refuse(f"the processor step {name!r}, which is none")
        return found

    def import_class(name: str, module: Any, **options: Any) -> NoReturn:
        refuse(f"the class {name!r} in the file {module}")

    with _loading:
        setattr(DataProcessorPipeline, RESOLVER, classmethod(resolve_step))
        setattr(dynamic, IMPORTER, import_class)
        try:
            yield
        finally:
            setattr(DataProcessorPipeline, RESOLVER, resolve)
            setattr(dynamic, IMPORTER, importer)


def _dynamic_modules() -> Any:
    """The module of transformers that imports code from repositories; a substitute where transformers is not installed."""
    try:
        import transformers.dynamic_module_utils as dynamic
    except ImportError:
        return types.SimpleNamespace(**{IMPORTER: object})
    return dynamic
