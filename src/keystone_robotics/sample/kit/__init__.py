"""Denoising K candidates on a context that none of them owns: what the fast paths of different policies have in common.

`attention` has the mathematics, `layer` a decoder layer on top of it, `rounds` what is computed once in a round; `smolvla` and
`gemma` are the action experts of SmolVLA and of π0 and π0.5. `dit` is the transformer of GR00T and StarVLA, which looks at the
context and at its own tokens in turns, and `cross_attention` its attention. `mot` is Fast-WAM's action expert, which does both
in every layer; `modulation` has the norms that `dit` and `mot` have in common. `layerwise` is a `dit` with a context for each
block, `vla_jepa` one under other names, `evo1` the transformer of EVO1, `qwen` the decoder of EO1 and Wall-X. `bypass` tells
when a fast path would leave out what somebody put on a network, `lengths` the compiler what varies.
"""
