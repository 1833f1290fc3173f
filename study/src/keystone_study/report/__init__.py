"""The demo's part of its page, and the pictures of the paper's Figure 1: candidates, their outcomes, films of episodes."""
