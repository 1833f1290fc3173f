"""What the policies built on a Qwen-VL share: a tokenizer and a chat template."""

from pathlib import Path

from transformers import PreTrainedTokenizerFast

from .common import byte_tokenizer

NAMED_TOKENS = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
}
CHAT_TEMPLATE = (
    "{% for message in messages %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endfor %}"
)
"""Keeps only the images and the text of a conversation."""


def qwen_tokenizer(directory: Path, *more_tokens: str) -> PreTrainedTokenizerFast:
    """A byte tokenizer with Qwen's vision tokens and `more_tokens`, padding on the left."""
    named = {**NAMED_TOKENS, **{token.strip("<|>"): token for token in more_tokens}}
    return byte_tokenizer(directory, tuple(named.values()), named, padding_side="left")
