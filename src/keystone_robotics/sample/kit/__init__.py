"""Building blocks of fast paths: denoising K candidates on a context that is stored once.

`attention` merges attention to the shared context with attention to a candidate's own tokens; `decoder_layer` applies it to
a transformers decoder layer; `cross_attention` attends to the context alone; `modulation` has layer norms with external
scale and shift; `packing` puts K candidates into one sequence (plain path of π0, π0.5 and SmolVLA); `rounds` computes once
per round; `widen` repeats rows; `bypass` detects hooks and replaced methods that a fast path would skip; `lengths` marks
dynamic dimensions for the compiler.
"""
