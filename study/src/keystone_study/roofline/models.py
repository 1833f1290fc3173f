"""The paper's six models in numbers: what a denoising step reads, computes and launches."""

from __future__ import annotations

from dataclasses import dataclass

from keystone_robotics.errors import KeystoneError, nearest_name


@dataclass(frozen=True)
class Model:
    """One model, as its published configuration has it. Parameters are in millions, in bfloat16 (two bytes).

    Attributes:
        title: display name.
        paper_k: K in the paper's main table.
        weights: parameters that a denoising step applies to the action tokens.
        time_weights: parameters that work on the time step alone (adaptive norms): read in every step; where the context is
            shared, once per round, for all steps together, if the fast path does so (`time_once`).
        context_weights: parameters that project the context inside the step (cross-attention keys and values): for every
            candidate and step; where the context is shared, once per round.
        suffix: action (and state) tokens of one candidate.
        prefix: context tokens that attention looks at.
        layers: attention layers over the prefix.
        query_width: heads times head size.
        head: size of one head.
        cache_width: numbers of keys and values together, for one token and layer.
        repeats: how often eager attention copies a key for grouped queries.
        copies: how often a step copies the cache (clone, concatenation).
        materialised: eager attention writes its scores to memory.
        ops: operations of one step in LeRobot's code; `shared_ops` on KeyStone's fast path.
        counted: whether both were counted with a ``TorchDispatchMode`` in study/tests/roofline: on LeRobot's code in float32,
            without views; attention without a bias is one operation, by a fused kernel that returns its log-sum-exp.
            Otherwise they are estimates.
        steps: of denoising in a round.
        encoder: parameters of the encoder.
        encoder_tokens: tokens that the encoder works on.
        encoder_ops: operations of one encoding. Estimated for every model.
        shares_context: whether there is anything exact to share; else the shared step is the plain one.
        projected: context tokens that ``context_weights`` work on; None for the whole prefix.
        time_once: whether the fast path has the time's part of all steps computed before the first one.
    """

    title: str
    paper_k: int
    weights: float
    time_weights: float
    context_weights: float
    suffix: int
    prefix: int
    layers: int
    query_width: int
    head: int
    cache_width: int
    repeats: int
    copies: int
    materialised: bool
    ops: int
    shared_ops: int
    steps: int
    encoder: float
    encoder_tokens: int
    encoder_ops: int
    counted: bool
    shares_context: bool = True
    projected: int | None = None
    time_once: bool = True


MODELS: dict[str, Model] = {
    "pi05": Model(
        "π0.5", 16, weights=311, time_weights=117, context_weights=0, suffix=50, prefix=968, layers=18, query_width=2048,
        head=256, cache_width=512, repeats=8, copies=2, materialised=True, ops=1004, shared_ops=930, steps=10, encoder=2400,
        encoder_tokens=968, encoder_ops=2200, counted=True, time_once=False,
    ),
    "smolvla": Model(
        "SmolVLA", 16, weights=90, time_weights=0, context_weights=1.64, suffix=50, prefix=241, layers=16, query_width=960,
        head=64, cache_width=640, repeats=3, copies=1, materialised=True, ops=1022, shared_ops=701, steps=10, encoder=250,
        encoder_tokens=1200, encoder_ops=1700, counted=True,
    ),
    # Operations are those of N1.7, which LeRobot has; the transformer is the same.
    "groot": Model(
        "GR00T N1.6", 4, weights=830, time_weights=151, context_weights=101, suffix=17, prefix=286, layers=16,
        query_width=1536, head=48, cache_width=3072, repeats=1, copies=0, materialised=False, ops=707, shared_ops=398,
        steps=4, encoder=1900, encoder_tokens=286, encoder_ops=1200, counted=True,
    ),
    # Vision-language tokens run through the denoiser jointly with the actions: they are part of the suffix.
    "xvla": Model(
        "X-VLA", 4, weights=302, time_weights=0, context_weights=0, suffix=276, prefix=0, layers=24, query_width=1024,
        head=64, cache_width=0, repeats=1, copies=0, materialised=False, ops=269, shared_ops=269, steps=10, encoder=560,
        encoder_tokens=300, encoder_ops=1500, counted=True, shares_context=False,
    ),
    # Operations are those of GR00T at half its depth: StarVLA has a copy of that transformer.
    "starvla": Model(
        "StarVLA", 16, weights=116, time_weights=19, context_weights=25, suffix=49, prefix=350, layers=8, query_width=768,
        head=64, cache_width=1536, repeats=1, copies=0, materialised=False, ops=387, shared_ops=222, steps=4, encoder=3500,
        encoder_tokens=350, encoder_ops=2000, counted=False,
    ),
    # Three cameras of RoboTwin: 120 tokens of video, which come with a cache, and 129 of text and state, which are projected.
    "fastwam": Model(
        "Fast-WAM", 16, weights=818, time_weights=7.6, context_weights=194, suffix=32, prefix=249, layers=30,
        query_width=3072, head=128, cache_width=6144, repeats=1, copies=1, materialised=False, ops=1944, shared_ops=1294,
        steps=10, encoder=5000, encoder_tokens=120, encoder_ops=2500, counted=True, projected=129,
    ),
}  # fmt: skip


def find_model(name: str) -> Model:
    """A model by name; spelling variants are accepted.

    >>> find_model("π0.5") is find_model("pi05"), find_model("GR00T-N1.6").steps
    (True, 4)
    >>> find_model("smolvl")
    Traceback (most recent call last):
    keystone_robotics.errors.KeystoneError: the roofline does not know the model 'smolvl': did you mean 'smolvla'? ...
    """
    plain = name.lower().replace("π", "pi").replace("gr00t", "groot").replace("n1.6", "")
    plain = "".join(letter for letter in plain if letter.isalnum())
    if plain not in MODELS:
        raise KeystoneError(f"the roofline does not know the model {name!r}: {nearest_name(plain, MODELS)}")
    return MODELS[plain]
