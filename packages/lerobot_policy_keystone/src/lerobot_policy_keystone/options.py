"""KeyStone's options as LeRobot's command-line parser reads them: flat, all optional."""

from dataclasses import dataclass, fields
from typing import Any

from keystone_robotics.integrations import Settings

COMMON = ("k", "rule", "temperature", "seed", "metric", "fast", "compile")


@dataclass
class KeystoneOptions:
    """KeyStone: draw K action chunks from one context, execute the one they agree on. Any option turns it on."""

    k: int | str | None = (
        None  # candidates per round, or auto; 16 if another option is given, 1 runs the policy's own code
    )
    rule: str | None = None  # how one is chosen: keystone (default), medoid, density, kde, coherent, …
    temperature: float | None = None  # factor on the initial noise
    seed: int | None = None  # of the noise of all rounds; default: from torch's global generator
    metric: str | None = None  # l2 (default), l1 or cosine
    fast: bool | None = None  # draw on a fast path where there is one and it is exact (default)
    compile: bool | None = None  # compile the denoising step

    tau: float | None = None  # keystone, cluster-mean: from which spread on the candidates are clustered
    clusters: int | None = None  # keystone, cluster-medoid, cluster-mean
    iterations: int | None = None  # keystone, cluster-medoid, cluster-mean: of k-means
    init: str | None = None  # keystone, cluster-medoid, cluster-mean: of k-means, random or best
    neighbours: int | None = None  # density
    bandwidth: float | None = None  # kde
    whole: bool | None = None  # kde: over whole chunks
    decay: float | None = None  # coherent
    share: float | None = None  # coherent, trimmed-mean: of the candidates

    def settings(self) -> Settings:
        """What was given."""
        values = {field.name: getattr(self, field.name) for field in fields(KeystoneOptions)}
        common: dict[str, Any] = {name: values.pop(name) for name in COMMON}
        return Settings(**common, params={name: value for name, value in values.items() if value is not None})
