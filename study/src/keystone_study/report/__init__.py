"""The page of the demo and the pictures of the paper's Figure 1: candidates, their outcomes, films of episodes."""
